"""Real etcd servers for the tests of this directory. Each version is started once, for the first test that
needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from brokerlab.etcd_process import EtcdProcess
from tidelog.cli.local_cluster.processes import (
    HOW_TO_GET_ONE,
    EtcdBinary,
    EtcdNotFoundError,
    etcd_of_distro,
    etcd_on_path,
    version_of,
)

OLD, NEW = "etcd-3.4", "etcd-3.5"
DEBIANS_ETCD = Path("/usr/bin/etcd")


def _found() -> dict[str, EtcdBinary]:
    """Returns the etcd binaries by OLD and NEW. A release later than 3.5 counts as NEW."""
    binaries: dict[str, EtcdBinary] = {}
    for path in (etcd_on_path(), DEBIANS_ETCD, etcd_of_distro()):
        if path is None or not path.exists():
            continue
        try:
            binary = EtcdBinary(path, version_of(path))
        except EtcdNotFoundError:
            continue
        binaries.setdefault(OLD if binary.minor < (3, 5) else NEW, binary)
    return binaries


@pytest.fixture(scope="session")
def etcd_binaries() -> dict[str, EtcdBinary]:
    return _found()


@pytest.fixture(scope="session")
def etcd_binary(etcd_binaries: dict[str, EtcdBinary]) -> Callable[[str], EtcdBinary]:
    """Returns the binary of OLD or NEW, and skips the test if there is none."""

    def binary(version: str) -> EtcdBinary:
        if version not in etcd_binaries:
            pytest.skip(f"no {version} here ({HOW_TO_GET_ONE})")
        return etcd_binaries[version]

    return binary


@pytest.fixture(scope="session")
def any_etcd_binary(etcd_binaries: dict[str, EtcdBinary]) -> EtcdBinary:
    """The newest etcd on this machine."""
    for version in (NEW, OLD):
        if version in etcd_binaries:
            return etcd_binaries[version]
    pytest.skip(HOW_TO_GET_ONE)


@pytest.fixture(scope="session")
def etcd_server(
    etcd_binary: Callable[[str], EtcdBinary], tmp_path_factory: pytest.TempPathFactory
) -> Generator[Callable[[str], EtcdProcess]]:
    """Returns a running server of OLD or NEW. The tests of the session share it, each with its own key
    prefix.
    """
    servers: dict[str, EtcdProcess] = {}

    def server(version: str) -> EtcdProcess:
        if version not in servers:
            directory = tmp_path_factory.mktemp(version)
            process = EtcdProcess(directory / "data", directory / "log", binary=etcd_binary(version))
            servers[version] = process.start()
        return servers[version]

    yield server
    for process in servers.values():
        process.stop()
