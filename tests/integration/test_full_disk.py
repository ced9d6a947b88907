"""A full disk: KAFKA_STORAGE_ERROR, no acknowledged record is lost, and the broker recovers when there is
space.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from brokerlab.batches import build_batch
from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import admin_client, consume_messages, create_topic, produce_values
from brokerlab.raw_client import RawClient

pytestmark = pytest.mark.integration
KAFKA_STORAGE_ERROR = 56
FILE_LIMIT_BYTES = 8 * 1024 * 1024
VALUE_BYTES = 200_000


def mount_tmpfs(directory: Path, size: str, *, is_remount: bool = False) -> bool:
    options = f"{'remount,' if is_remount else ''}size={size}"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)], capture_output=True, check=False
    )
    return done.returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path | None]:
    """Returns a file system of 24 MB, None if mounting is not permitted."""
    directory = tmp_path / "disk"
    directory.mkdir()
    is_mounted = os.geteuid() == 0 and mount_tmpfs(directory, "24m")
    yield directory if is_mounted else None
    if is_mounted:
        subprocess.run(["umount", "-l", str(directory)], check=False)


def append(raw: RawClient, number: int) -> int:
    batch = build_batch([b"%06d" % number + b"x" * VALUE_BYTES])
    return int(raw.produce("t", batch).error_code)


def check_acknowledged(bootstrap: str, acknowledged: list[int]) -> None:
    messages = consume_messages(bootstrap, "t", len(acknowledged), check_crcs=True)
    assert [int(m.value()[:6]) for m in messages] == acknowledged
    assert [m.offset() for m in messages] == list(range(len(acknowledged)))


def test_a_full_disk(small_disk: Path | None, start_broker: Callable[..., BrokerProcess]) -> None:
    if small_disk is not None:
        broker = start_broker(data_dir=small_disk / "data")
    else:  # without root, a limit on the file size fails the same writes with another error number
        broker = start_broker(file_size_limit_bytes=FILE_LIMIT_BYTES)
    create_topic(broker.bootstrap, "t")
    acknowledged: list[int] = []
    errors: list[int] = []
    with RawClient(broker.bootstrap) as raw:
        number = 0
        while len(errors) < 5:
            error = append(raw, number)
            (errors if error else acknowledged).append(error or number)
            number += 1
            assert number < 1000, "the disk never filled"
    assert errors == [KAFKA_STORAGE_ERROR] * 5
    assert len(acknowledged) > 10
    assert broker.is_running()
    check_acknowledged(broker.bootstrap, acknowledged)
    assert "t" in admin_client(broker.bootstrap).list_topics(timeout=30).topics

    broker.kill()
    if small_disk is not None:
        assert mount_tmpfs(small_disk, "64m", is_remount=True)
    broker.file_size_limit_bytes = None
    broker.start()
    check_acknowledged(broker.bootstrap, acknowledged)
    with RawClient(broker.bootstrap) as raw:
        assert append(raw, 999_999) == 0
    check_acknowledged(broker.bootstrap, [*acknowledged, 999_999])


def test_freed_space_is_used_without_a_restart(
    small_disk: Path | None, start_broker: Callable[..., BrokerProcess]
) -> None:
    if small_disk is None:
        pytest.skip("mounting a small file system needs root")
    broker = start_broker(data_dir=small_disk / "data")
    create_topic(broker.bootstrap, "t")
    create_topic(broker.bootstrap, "other")
    acknowledged: list[int] = []
    with RawClient(broker.bootstrap) as raw:
        while append(raw, len(acknowledged)) == 0:
            acknowledged.append(len(acknowledged))
        assert mount_tmpfs(small_disk, "64m", is_remount=True)
        for _ in range(5):
            assert append(raw, len(acknowledged)) == 0
            acknowledged.append(len(acknowledged))
    check_acknowledged(broker.bootstrap, acknowledged)
    produce_values(broker.bootstrap, "other", [b"x"])
