"""The version, the commit and the kind of this build of tidelog."""

from __future__ import annotations

import re
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tidelog import __version__

COMMIT_FILE: Final = "commit.txt"
"""The file beside this module that names the commit of a wheel. `hatch_build.py` writes it."""
UNKNOWN: Final = "unknown"
_GIT_TIMEOUT_S: Final = 5


def is_compiled() -> bool:
    """Returns whether the request path is machine code (ADR 0020), without importing it."""
    spec = find_spec("tidelog.metrics.telemetry")
    return spec is not None and (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))


def tidelog_version() -> str:
    """Returns the version of tidelog, such as 0.2.0."""
    return __version__


def install_command(extra: str) -> str:
    """Returns the command that installs what an extra of tidelog needs.

    It names the packages themselves, because tidelog may not be on the user's package index.
    """
    try:
        named = [line.partition(";") for line in requires("tidelog") or ()]
    except PackageNotFoundError:  # a checkout that is not installed
        named = []
    is_wanted = re.compile(rf"""\s*extra == ['"]{extra}['"]\s*""").fullmatch
    packages = [f"'{package.strip()}'" for package, _, marker in named if is_wanted(marker)]
    return " ".join(["pip", "install", *(packages or [f"'.[{extra}]'"])])


def commit() -> str:
    """Returns the commit of this build: that of the wheel, or of the checkout that is running, with `-dirty`
    if files differ from it. Returns "unknown" for a wheel that was built without git.
    """
    file = Path(__file__).with_name(COMMIT_FILE)
    if file.is_file():
        return file.read_text("utf-8").strip()
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists():
        return UNKNOWN
    import subprocess  # costs 10 ms that not every process needs

    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return found.stdout.strip() or UNKNOWN
