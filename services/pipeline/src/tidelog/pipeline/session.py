"""The Spark session of every job: embedded by default, remote by Spark Connect, or that of spark-submit."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.jars import session_jars
from tidelog.pipeline.java import check_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER: Final = "local[*]"
DEFAULT_CONNECT_PORT: Final = 15002
CONNECT_TIMEOUT_S: Final = 10.0
MASTER_VARIABLE: Final = "TIDELOG_SPARK_MASTER"
"""The master where none is given; with a cluster's the rest is spark-defaults.conf's, in SPARK_CONF_DIR."""

SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    # Data sources in Python hand over Arrow batches; so do pandas functions.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # They may take filters, as the segment source does.
    "spark.sql.python.filterPushdown.enabled": "true",
}
"""Of every session, or of the server that sessions of Spark Connect are at."""
EMBEDDED: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The defaults of 200 and 50 are for clusters: on one machine each task costs more than its work.
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.snapshotPartitions": "2",
}
"""Beside that, of all that runs on one machine."""


def is_remote(session: SparkSession) -> bool:
    """Of Spark Connect: no SparkContext here, and functions run in the server's processes."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def check_remote(remote: str, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
    """Spark itself would go on trying for ten minutes without a word. Raises PipelineError."""
    try:
        parts = urlsplit(remote)
        host, port = parts.hostname, parts.port or DEFAULT_CONNECT_PORT
    except ValueError:
        host = None
    if host is None or parts.scheme != "sc":
        raise PipelineError(f"{remote} is no address of a Spark Connect server: sc://HOST:PORT is expected")
    try:
        socket.create_connection((host, port), timeout_s).close()
    except OSError as error:
        raise PipelineError(
            f"no Spark Connect server answers at {host}:{port} ({error.strerror or error}): "
            "'tidelog pipeline connect-server' starts one; without SPARK_REMOTE this runs here"
        ) from error


def spark_session(
    app_name: str,
    *,
    settings: Mapping[str, str] | None = None,
    master: str | None = None,
    remote: str | None = None,
) -> SparkSession:
    """`settings` win over ours. `remote` (or SPARK_REMOTE) is a Spark Connect address, sc://HOST:PORT;
    without it and outside spark-submit the session is this process's own, of `master`, MASTER_VARIABLE or
    DEFAULT_MASTER.

    Raises JavaMissingError, PipelineError (no pyspark, no JARs, no server).
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise PipelineError("Spark isn't installed here: pip install 'tidelog[pipeline]'") from error
    builder = SparkSession.builder.appName(app_name)
    remote = remote or os.environ.get("SPARK_REMOTE")
    if remote:
        check_remote(remote)
        # Static settings are the server's own.
        for name, value in (settings or {}).items():
            builder = builder.config(name, value)
        return builder.remote(remote).getOrCreate()
    chosen = dict(SETTINGS)
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has its own master and JARs
    if not is_submitted:
        check_java()
        chosen["spark.master"] = master or os.environ.get(MASTER_VARIABLE) or DEFAULT_MASTER
        if chosen["spark.master"].startswith("local"):
            chosen |= EMBEDDED
            # Python workers must have what this process has.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        jars = session_jars()
        if jars:
            chosen["spark.jars"] = ",".join(str(jar) for jar in jars)
    for name, value in {**chosen, **(settings or {})}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    if not is_submitted:
        session.sparkContext.setLogLevel("ERROR")
    return session
