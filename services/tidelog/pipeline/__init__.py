"""PySpark jobs that load topics into tables which can be proven complete, and the segment data source.

pyspark, pyarrow, numpy and pandas come with the extra `pipeline`. Only this package imports them.
"""
