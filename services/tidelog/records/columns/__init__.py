"""The records of many batches as columns. Only these modules import NumPy and PyArrow, which are optional."""
