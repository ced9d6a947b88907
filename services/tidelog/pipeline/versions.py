"""The tested combination of Spark, Kafka connector and Delta Lake (ADR 0019)."""

from __future__ import annotations

from typing import Final

SPARK_VERSION: Final = "4.2.0"
SCALA_VERSION: Final = "2.13"
DELTA_VERSION: Final = "4.4.0"
MIN_JAVA_VERSION: Final = 17

MAVEN_COORDINATES: Final = (
    f"org.apache.spark:spark-sql-kafka-0-10_{SCALA_VERSION}:{SPARK_VERSION}",
    f"io.delta:delta-spark_{SCALA_VERSION}:{DELTA_VERSION}",
)
"""The packages that a session needs besides pyspark's own JARs."""

EXCLUDED_ARTIFACTS: Final = (
    # Spark contains its own copy of each. A second copy on the class path would shadow it.
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.logging.log4j:log4j-api",
    "org.apache.logging.log4j:log4j-core",
    "org.apache.logging.log4j:log4j-slf4j2-impl",
    "org.apache.parquet:parquet-hadoop",
    "org.apache.parquet:parquet-column",
    "org.apache.parquet:parquet-common",
    "org.apache.parquet:parquet-encoding",
    "org.apache.parquet:parquet-format-structures",
    "org.apache.parquet:parquet-jackson",
    "com.fasterxml.jackson.core:jackson-annotations",
    "com.fasterxml.jackson.core:jackson-core",
    "com.fasterxml.jackson.core:jackson-databind",
    "com.fasterxml.jackson.datatype:jackson-datatype-jdk8",
    "com.github.luben:zstd-jni",
    "com.google.code.findbugs:jsr305",
    "org.slf4j:slf4j-api",
    "org.xerial.snappy:snappy-java",
    "at.yawk.lz4:lz4-java",
    "org.lz4:lz4-java",
    "org.scala-lang.modules:scala-parallel-collections_2.13",
    "org.roaringbitmap:RoaringBitmap",
    "io.airlift:aircompressor",
    "commons-pool:commons-pool",
    "javax.annotation:javax.annotation-api",
)
