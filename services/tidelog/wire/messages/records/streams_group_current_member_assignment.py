"""StreamsGroupCurrentMemberAssignmentKey and StreamsGroupCurrentMemberAssignmentValue.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import NOT_FLEXIBLE, F, Fields


@dataclass(slots=True)
class StreamsGroupCurrentMemberAssignmentKey:
    group_id: str = ""
    member_id: str = ""

    API_KEY: ClassVar[int] = 22
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
    assignment_epochs: list[int] | None = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("subtopology_id", "string", "0+"),
        F("partitions", ("int32",), "0+"),
        F("assignment_epochs", ("int32",), "0+", nullable="0+", tagged="0+", tag=0),
    )


@dataclass(slots=True)
class StreamsGroupCurrentMemberAssignmentValue:
    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: int = 0
    active_tasks: list[TaskIds] = field(default_factory=list)
    standby_tasks: list[TaskIds] = field(default_factory=list)
    warmup_tasks: list[TaskIds] = field(default_factory=list)
    active_tasks_pending_revocation: list[TaskIds] = field(default_factory=list)
    standby_tasks_pending_revocation: list[TaskIds] = field(default_factory=list)
    warmup_tasks_pending_revocation: list[TaskIds] = field(default_factory=list)

    API_KEY: ClassVar[int] = 22
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("member_epoch", "int32", "0+"),
        F("previous_member_epoch", "int32", "0+"),
        F("state", "int8", "0+"),
        F("active_tasks", (TaskIds,), "0+"),
        F("standby_tasks", (TaskIds,), "0+"),
        F("warmup_tasks", (TaskIds,), "0+"),
        F("active_tasks_pending_revocation", (TaskIds,), "0+"),
        F("standby_tasks_pending_revocation", (TaskIds,), "0+"),
        F("warmup_tasks_pending_revocation", (TaskIds,), "0+"),
    )
