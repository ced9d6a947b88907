"""Finds the Java that Spark runs on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.versions import MIN_JAVA_VERSION

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
