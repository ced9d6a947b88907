"""Small volumes of the lab that can be filled: persistent volumes on file systems in files.

The lab's storage class makes directories on the machine's own disk. Filling that disk would harm everything
on it.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from e2e.kubectl import Kubectl

STORAGE_CLASS = "chaos-small"
VOLUME_MIB = 768
COMMAND_TIMEOUT_S = 60.0


@contextlib.contextmanager
def small_volumes(kubectl: Kubectl, directory: Path, count: int) -> Iterator[str]:
    """Yields the name of their storage class. The volumes and their contents are deleted at the end."""
    mounted: list[Path] = []
    names = [f"{STORAGE_CLASS}-{kubectl.namespace}-{number}" for number in range(count)]
    try:
        kubectl.apply(_storage_class())
        for name in names:
            mounted.append(_mount(directory / name))
            kubectl.apply(_volume(name, mounted[-1]))
        yield STORAGE_CLASS
    finally:
        for name in names:
            kubectl.run("delete", "pv", name, "--ignore-not-found", "--wait=false")
        kubectl.run("delete", "storageclass", STORAGE_CLASS, "--ignore-not-found")
        for path in mounted:
            _run("umount", "--lazy", str(path))
            path.with_suffix(".img").unlink()
            path.rmdir()


def _mount(path: Path) -> Path:
    path.mkdir(parents=True)
    image = path.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(VOLUME_MIB << 20)
    _run("mkfs.ext4", "-q", "-m", "0", str(image))
    _run("mount", "-o", "loop", str(image), str(path))
    (path / "lost+found").rmdir()
    path.chmod(0o777)  # the user of the pods is not root
    return path


def _run(*command: str) -> None:
    subprocess.run(
        command, check=True, timeout=COMMAND_TIMEOUT_S, stdin=subprocess.DEVNULL, capture_output=True
    )


def _storage_class() -> Mapping[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": STORAGE_CLASS},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def _volume(name: str, path: Path) -> Mapping[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": f"{VOLUME_MIB}Mi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": STORAGE_CLASS,
            "hostPath": {"path": str(path)},
        },
    }
