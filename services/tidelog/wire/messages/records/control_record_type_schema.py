"""ControlRecordTypeSchema.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidelog.wire.schema import NOT_FLEXIBLE, F, Fields


@dataclass(slots=True)
class ControlRecordTypeSchema:
    type: int = 0

    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("type", "int16", "0+"),
    )
