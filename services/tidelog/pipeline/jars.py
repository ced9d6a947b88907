"""The JARs that a session needs besides pyspark's own. Spark's resolver fetches them once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.java import check_java
from tidelog.pipeline.versions import (
    DELTA_VERSION,
    EXCLUDED_ARTIFACTS,
    JAR_SHA256,
    MAVEN_COORDINATES,
    SPARK_VERSION,
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
        raise PipelineError(f"the JAR {name} {what}; compare it with JAR_SHA256 in pipeline/versions.py")
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
