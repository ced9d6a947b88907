"""What is read without waiting for a disk, and what is not."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tidelog.broker.page_cache import is_resident, read_resident

CONTENT = b"0123456789"


@pytest.fixture
def fileno(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "segment"
    path.write_bytes(CONTENT)
    with path.open("rb") as file:
        yield file.fileno()


def test_what_was_just_written_is_read(fileno: int) -> None:
    assert read_resident(fileno, 2, 5) == CONTENT[2:7]
    assert is_resident(fileno, 9)


def test_a_range_that_is_there_in_part_only_is_not_read(fileno: int) -> None:
    """As where the first pages are in memory and the next are not: the call then tells of the first."""
    assert read_resident(fileno, 8, 5) is None


def _refusing(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "preadv", refuse)


def test_what_would_wait_is_not_read(fileno: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _refusing(monkeypatch, errno.EAGAIN)
    assert read_resident(fileno, 2, 5) is None
    assert not is_resident(fileno, 2)


def test_a_file_system_that_can_not_tell_is_read(fileno: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _refusing(monkeypatch, errno.EOPNOTSUPP)
    assert read_resident(fileno, 2, 5) == CONTENT[2:7]
    assert is_resident(fileno, 2)


def test_a_broken_disk_is_an_error(fileno: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _refusing(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        read_resident(fileno, 2, 5)
