"""The check whether a range of a file is in memory, and cases in which this is unknown."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidelog.broker.log.segment import is_resident


@pytest.fixture
def fileno(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "segment"
    path.write_bytes(b"0123456789")
    with path.open("rb") as file:
        yield file.fileno()


def test_a_range_that_was_just_written_is_in_memory(fileno: int) -> None:
    assert is_resident(fileno, 9)


@pytest.mark.parametrize(("error", "is_there"), [(errno.EAGAIN, False), (errno.EOPNOTSUPP, True)])
def test_a_range_that_would_wait_is_not_in_memory_and_an_unknown_one_is(
    fileno: int, monkeypatch: pytest.MonkeyPatch, error: int, is_there: bool
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "preadv", refuse)
    assert is_resident(fileno, 2) is is_there
