"""StreamsGroupTargetAssignmentMemberKey and StreamsGroupTargetAssignmentMemberValue.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import NOT_FLEXIBLE, F, Fields


@dataclass(slots=True)
class StreamsGroupTargetAssignmentMemberKey:
    group_id: str = ""
    member_id: str = ""

    API_KEY: ClassVar[int] = 21
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0"),
        F("member_id", "string", "0"),
    )


@dataclass(slots=True)
class TaskIds:
    subtopology_id: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("subtopology_id", "string", "0+"),
        F("partitions", ("int32",), "0+"),
    )


@dataclass(slots=True)
class StreamsGroupTargetAssignmentMemberValue:
    active_tasks: list[TaskIds] = field(default_factory=list)
    standby_tasks: list[TaskIds] = field(default_factory=list)
    warmup_tasks: list[TaskIds] = field(default_factory=list)

    API_KEY: ClassVar[int] = 21
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("active_tasks", (TaskIds,), "0+"),
        F("standby_tasks", (TaskIds,), "0+"),
        F("warmup_tasks", (TaskIds,), "0+"),
    )
