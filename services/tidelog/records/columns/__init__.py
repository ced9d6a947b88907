"""The records of many batches as columns of NumPy and Arrow, which the rest of `tidelog.records` avoids."""
