"""Keeps the records that recovery takes out of a log, because a batch before them is damaged or missing.

The files get the suffix `.stranded`. No program reads or removes them, and Apache Kafka ignores them. They
are for the operator, who may have no other copy.
"""

from __future__ import annotations

import os
from typing import Final

import structlog

from tidelog.broker.log.directory_files import sync_file
from tidelog.broker.log.segment import Segment
from tidelog.log_format.directory import STRANDED_SUFFIX

_CHUNK_BYTES: Final = 1024 * 1024

_log = structlog.get_logger(__name__)


def strand_segment(segment: Segment) -> None:
    """Takes a whole segment out of its log. Removes its indexes, because they can be built again. Raises
    OSError.
    """
    target = _free_name(segment.path)
    os.rename(segment.path, target)
    segment.remove_files()
    _say(target, segment.size_bytes)


def strand_end(segment: Segment, position: int) -> None:
    """Copies the end of a segment, from `position`, durably. Only zeros, which a crash of the machine can
    leave, are not worth a copy. Raises OSError.
    """
    fd, size = segment.open_file(), segment.size_bytes
    if _is_zero(fd, position, size):
        return
    target = _free_name(f"{segment.path}.from-{position}")
    with open(target, "xb", buffering=0) as copy:
        at = position
        while at < size:
            at += copy.write(os.pread(fd, min(_CHUNK_BYTES, size - at), at))
    sync_file(target)
    segment.directory.sync()
    _say(target, size - position)


def _is_zero(fd: int, position: int, end: int) -> bool:
    return not any(
        os.pread(fd, min(_CHUNK_BYTES, end - at), at).strip(b"\0")
        for at in range(position, end, _CHUNK_BYTES)
    )


def _free_name(path: str) -> str:
    target, number = path + STRANDED_SUFFIX, 0
    while os.path.exists(target):
        number += 1
        target = f"{path}.{number}{STRANDED_SUFFIX}"
    return target


def _say(path: str, size_bytes: int) -> None:
    _log.warning("recovery keeps what it takes out of a log", file=path, size_bytes=size_bytes)
