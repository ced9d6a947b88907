"""The Spark session of every job: embedded by default, remote through Spark Connect, or the one of spark-
submit; and the command that starts a Spark Connect server with the JARs, extensions and static settings that
the jobs need.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tidelog.model.brokers import host_and_port
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.jars import check_java, session_jars
from tidelog.process.build import install_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


DEFAULT_MASTER: Final = "local[*]"
DEFAULT_CONNECT_PORT: Final = 15002
CONNECT_TIMEOUT_S: Final = 10.0
MASTER_VARIABLE: Final = "TIDELOG_SPARK_MASTER"
"""The environment variable with the default master. With a cluster's master, the other settings come from
spark-defaults.conf in SPARK_CONF_DIR.
"""

SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    # Data sources in Python and pandas functions hand over Arrow batches.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Data sources in Python may accept filters, as the segment source does.
    "spark.sql.python.filterPushdown.enabled": "true",
}
"""Settings of every session, or of the server that runs the sessions of Spark Connect."""
EMBEDDED: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The defaults of 200 and 50 are for clusters. On one machine, each task costs more than its work.
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.snapshotPartitions": "2",
}
"""Additional settings of sessions that run on one machine."""

QUIET_LOG: Final = Path(__file__).with_name("quiet-log4j2.properties")
"""The configuration of the JVM's log. Only there can the messages of Spark's start be left out."""


def embedded_settings() -> dict[str, str]:
    """Returns the additional settings of a session on this machine."""
    return {**EMBEDDED, "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={QUIET_LOG.as_uri()}"}


def is_remote(session: SparkSession) -> bool:
    """Returns True for a session of Spark Connect. Such a session has no SparkContext, and its functions run
    in the server's processes.
    """
    return type(session).__module__.startswith("pyspark.sql.connect.")


def check_remote(remote: str, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
    """Checks that a Spark Connect server answers. Spark itself would retry silently for ten minutes. Raises
    PipelineError.
    """
    try:
        parts = urlsplit(remote)
        host, port = parts.hostname, parts.port or DEFAULT_CONNECT_PORT
    except ValueError:
        host = None
    if host is None or parts.scheme != "sc":
        raise PipelineError(
            f"{remote} is not an address of a Spark Connect server; the form is sc://HOST:PORT"
        )
    try:
        socket.create_connection((host, port), timeout_s).close()
    except OSError as error:
        raise PipelineError(
            f"no Spark Connect server answers at {host_and_port(host, port)} ({error.strerror or error}): "
            "start one with 'tidelog pipeline connect-server', or unset SPARK_REMOTE to run here"
        ) from error


def spark_session(
    app_name: str,
    *,
    settings: Mapping[str, str] | None = None,
    master: str | None = None,
    remote: str | None = None,
) -> SparkSession:
    """Returns the session of the job. `settings` override our own settings. `remote` (or SPARK_REMOTE) is a
    Spark Connect address, sc://HOST:PORT. Without it, and outside spark-submit, the session belongs to this
    process, and its master is `master`, MASTER_VARIABLE or DEFAULT_MASTER.

    Raises JavaMissingError, and PipelineError if pyspark, the JARs or the server are missing.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise PipelineError(f"Spark is not installed: {install_command('pipeline')}") from error
    builder = SparkSession.builder.appName(app_name)
    remote = remote or os.environ.get("SPARK_REMOTE")
    if remote:
        check_remote(remote)
        # The server sets its own static settings.
        for name, value in (settings or {}).items():
            builder = builder.config(name, value)
        return builder.remote(remote).getOrCreate()
    chosen = dict(SETTINGS)
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit sets its own master and JARs
    if not is_submitted:
        check_java()
        chosen["spark.master"] = master or os.environ.get(MASTER_VARIABLE) or DEFAULT_MASTER
        if chosen["spark.master"].startswith("local"):
            chosen |= embedded_settings()
            # Python workers need the module path of this process.
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


_MAIN_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"


def server_command(
    host: str, port: int, *, master: str, memory: str, settings: Mapping[str, str] | None = None
) -> list[str]:
    """Returns the command that runs the server in the foreground. Raises JavaMissingError, PipelineError."""
    check_java()
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise PipelineError(f"Spark is not installed: {install_command('pipeline')}")
    chosen = {
        **SETTINGS,
        "spark.connect.grpc.binding.address": host,
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
    }
    if master.startswith("local"):
        chosen |= EMBEDDED
    if jars := session_jars():
        chosen["spark.jars"] = ",".join(str(jar) for jar in jars)
    options = [f"--conf={name}={value}" for name, value in {**chosen, **(settings or {})}.items()]
    submit = Path(found.origin).parent / "bin" / "spark-submit"
    return [
        str(submit),
        "--class",
        _MAIN_CLASS,
        "--master",
        master,
        "--driver-memory",
        memory,
        *options,
        "spark-internal",
    ]
