"""The values of the options of commands that send records."""

from __future__ import annotations

from typing import Final

from tidelog.records.compression import Compression

ACKS: Final = ("all", "-1", "1", "0")
CODECS: Final = tuple(codec.name.lower() for codec in Compression)
