"""Topics into tables that can be proven complete: PySpark jobs and the segment data source.

pyspark, pyarrow, numpy and pandas come with the extra `pipeline`; only this package imports them.
"""
