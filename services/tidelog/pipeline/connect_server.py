"""Starts a Spark Connect server with the JARs, extensions and static settings that the jobs need."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.jars import session_jars
from tidelog.pipeline.java import check_java
from tidelog.pipeline.session import EMBEDDED, SETTINGS
from tidelog.process.build import install_command

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
