"""The Spark session of every job: embedded by default, remote through Spark Connect, or the one of spark-
submit; and the command that starts a Spark Connect server with the JARs, extensions and static settings that
the jobs need.

A session needs Java, and JARs besides pyspark's own, in the tested versions (ADR 0019). Spark's resolver
fetches the JARs once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tidelog.model.brokers import host_and_port
from tidelog.pipeline.errors import PipelineError
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

JAR_SHA256: Final = {
    "commons-pool2-2.13.1.jar": "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    "delta-kernel-api-4.4.0.jar": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "delta-kernel-defaults-4.4.0.jar": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "delta-kernel-unitycatalog-4.4.0.jar": "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
    "delta-spark_2.13-4.4.0.jar": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "kafka-clients-3.9.2.jar": "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    "spark-sql-kafka-0-10_2.13-4.2.0.jar": (
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705"
    ),
    "spark-token-provider-kafka-0-10_2.13-4.2.0.jar": (
        "641c7947afc8aa1189e433b7c2d305293993c8691bc1c2062d6d4f513b12518c"
    ),
    "unitycatalog-client-0.6.0.jar": "48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19",
    "unitycatalog-hadoop-0.6.0.jar": "c47b63c961c87102b9e1d63809a0915ba4c86b7652f57c8d39ca3a05b441a150",
}
"""The JARs that these coordinates bring, with their hashes (SHA-256). Other versions need another table:
`tidelog pipeline jars` names a JAR that differs.
"""


_ASK_TIMEOUT_S: Final = 30.0
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


class JavaMissingError(PipelineError):
    """Spark cannot start because there is no suitable Java."""


def java_command() -> str | None:
    """Returns the Java that Spark would start: JAVA_HOME's, else the one on PATH, or None if there is "
    "none."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")


def check_java() -> None:
    """Raises JavaMissingError, with what to install, unless there is a Java that Spark accepts."""
    command = java_command()
    step = f"install one (Debian: apt-get install openjdk-{MIN_JAVA_VERSION}-jre-headless) or set JAVA_HOME"
    if command is None:
        raise JavaMissingError(f"Spark needs Java {MIN_JAVA_VERSION} or newer, and there is none: {step}")
    done = subprocess.run(
        [command, "-version"], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False
    )
    found = _VERSION.search(done.stderr + done.stdout)
    if done.returncode or found is None:
        raise JavaMissingError(f"{command} does not report its version: {step}")
    if int(found[1]) < MIN_JAVA_VERSION:
        raise JavaMissingError(
            f"Spark needs Java {MIN_JAVA_VERSION} or newer, but {command} is Java {found[1]}: {step}"
        )


JARS_VARIABLE: Final = "TIDELOG_SPARK_JARS"
"""The environment variable that names a directory of JARs to use instead, or PROVIDED."""
PROVIDED: Final = "provided"
"""The value that says that the JARs are already among pyspark's own, as in the image of deploy/images."""
FETCH_TIMEOUT_S: Final = 600.0

# Spark resolves packages only when a session starts.
_RESOLVE: Final = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder.config("spark.jars.packages", sys.argv[1]).config("spark.jars.excludes", sys.argv[2]) \\
    .config("spark.jars.ivy", sys.argv[3]).config("spark.driver.host", "127.0.0.1") \\
    .config("spark.driver.bindAddress", "127.0.0.1").getOrCreate().stop()
"""


def jars_directory() -> Path:
    """Returns the directory that holds the fetched JARs. The directory may not exist yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tidelog" / "spark-jars" / f"spark-{SPARK_VERSION}-delta-{DELTA_VERSION}"


def session_jars() -> list[Path]:
    """Returns all JARs and fetches them if necessary. Returns an empty list if the JARs are provided. Raises
    PipelineError.
    """
    chosen = os.environ.get(JARS_VARIABLE)
    if chosen == PROVIDED:
        return []
    directory = Path(chosen) if chosen else jars_directory()
    if not directory.is_dir():
        if chosen:
            raise PipelineError(f"{JARS_VARIABLE} names {directory}, which is not a directory")
        fetch_jars(directory)
    return sorted(directory.glob("*.jar"))


def fetch_jars(directory: Path) -> None:
    """Creates `directory` with all JARs, or leaves nothing behind. Raises PipelineError."""
    check_java()
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.is_dir():
            return
        work = Path(tempfile.mkdtemp(prefix="ivy-", dir=directory.parent))
        try:
            _resolve(work)
            _rename_without_organisation(work / "jars")
            check_hashes(work / "jars", JAR_SHA256)
            (work / "jars").rename(directory)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _resolve(ivy_directory: Path) -> None:
    arguments = [",".join(MAVEN_COORDINATES), ",".join(EXCLUDED_ARTIFACTS), str(ivy_directory)]
    try:
        done = subprocess.run(
            [sys.executable, "-c", _RESOLVE, *arguments],
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PipelineError(
            f"Spark's JARs were not fetched within {FETCH_TIMEOUT_S:g} s; try again"
        ) from error
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise PipelineError(
            f"Spark's JARs cannot be fetched from Maven Central; put them into {jars_directory()} "
            f"or name a directory in {JARS_VARIABLE}. Spark said:\n{last}"
        )


def check_hashes(jars: Path, expected: Mapping[str, str]) -> None:
    """Checks that the directory contains exactly these JARs. Raises PipelineError that names a JAR."""
    found = {jar.name: jar for jar in jars.glob("*.jar")}
    for name in sorted(found.keys() ^ expected.keys()):
        what = "was fetched, but is not expected" if name in found else "is expected, but was not fetched"
        raise PipelineError(f"the JAR {name} {what}; compare it with JAR_SHA256 in pipeline/session.py")
    for name, jar in sorted(found.items()):
        with jar.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
        if actual != expected[name]:
            raise PipelineError(
                f"the JAR {name} has the SHA-256 {actual} instead of {expected[name]}; nothing was kept, "
                "so do not use the server it came from"
            )


def _rename_without_organisation(jars: Path) -> None:
    """Removes the organisation that Ivy puts before each file name. All other tools know the JARs without "
    "it."""
    for jar in jars.glob("*.jar"):
        jar.rename(jar.with_name(jar.name.split("_", 1)[1]))
