"""`spark.read.format("tidelog").load(DIRECTORY)` reads topics from segment files, without a broker."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from tidelog.pipeline.segments.batch import SegmentBatchReader
from tidelog.pipeline.segments.options import parse_options
from tidelog.pipeline.segments.schema import checked_columns, spark_schema
from tidelog.pipeline.segments.stream import SegmentStreamReader


class SegmentDataSource(DataSource):
    """The data source `tidelog`; `options.SegmentOptions` describes its options."""

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> StructType:
        return spark_schema(parse_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return SegmentBatchReader(parse_options(self.options), checked_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return SegmentStreamReader(parse_options(self.options), checked_columns(schema))
