"""Is a byte of a file in the page cache, and bringing it there: so that the event loop never waits for a
disk.
"""

from __future__ import annotations

import os

_READ_BYTES = 256 * 1024
_ONE_BYTE = [bytearray(1)]  # for the probe; what is read is of no interest


def is_resident(fileno: int, position: int) -> bool:
    """Whether reading the byte at `position` needs no disk. True at the end of the file and where the file
    system can't tell.
    """
    try:
        os.preadv(fileno, _ONE_BYTE, position, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:  # EOPNOTSUPP: this file system has no non-blocking reads (older overlayfs, FUSE)
        return True
    return True


def read_ahead(fileno: int, position: int, length: int) -> None:
    """Read the range so that it is in the page cache. Blocks: for a thread."""
    buffer = bytearray(min(length, _READ_BYTES))
    end = position + length
    while position < end:
        read = os.preadv(fileno, [buffer], position)
        if not read:
            return
        position += read
