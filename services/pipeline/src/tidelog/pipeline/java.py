"""Is there a Java that Spark runs on?"""

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
    """Spark can't start here."""


def java_command() -> str | None:
    """The one Spark would start: JAVA_HOME's, else that on PATH; None without any."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")


def check_java() -> None:
    """Raises JavaMissingError with what to install."""
    command = java_command()
    step = f"install one (Debian: apt-get install openjdk-{MIN_JAVA_VERSION}-jre-headless) or set JAVA_HOME"
    if command is None:
        raise JavaMissingError(f"Spark needs Java {MIN_JAVA_VERSION} or newer, and there is none: {step}")
    done = subprocess.run(
        [command, "-version"], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False
    )
    found = _VERSION.search(done.stderr + done.stdout)
    if done.returncode or found is None:
        raise JavaMissingError(f"{command} does not tell its version: {step}")
    if int(found[1]) < MIN_JAVA_VERSION:
        raise JavaMissingError(
            f"Spark needs Java {MIN_JAVA_VERSION} or newer, {command} is Java {found[1]}: {step}"
        )
