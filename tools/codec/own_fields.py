"""The fields that tidelog adds to Kafka's messages about the states of share partitions (ADR 0053).

They are tagged fields, which Kafka skips when it does not know them. Their tags are far above Kafka's own
tags, which count from 0. Only brokers and coordinators exchange these messages; clients do not see them.
"""

from __future__ import annotations

from typing import Any

FIRST_OWN_TAG = 1000


def _field(name: str, tag: int, about: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "int64",
        "versions": "0+",
        "taggedVersions": "0+",
        "tag": FIRST_OWN_TAG + tag,
        "about": about,
    }


AVAILABLE_AT = _field("AvailableAt", 0, "The time before which the records are not delivered, in ms.")
PAUSED_UNTIL = _field("PausedUntil", 1, "The end of the circuit breaker's pause, in ms; 0 without one.")
BATCHES = "StateBatches"
MESSAGES_WITH_STATES = {
    "ReadShareGroupStateResponse",
    "ShareSnapshotValue",
    "ShareUpdateValue",
    "WriteShareGroupStateRequest",
}


def add_own_fields(definition: dict[str, Any]) -> dict[str, Any]:
    """Adds tidelog's fields to a definition if it has any, and returns it."""
    if definition["name"] in MESSAGES_WITH_STATES:
        _add(definition["fields"])
    return definition


def _add(fields: list[dict[str, Any]]) -> None:
    for field in list(fields):
        if field["name"] == BATCHES:
            field["fields"].append(AVAILABLE_AT)
            fields.append(PAUSED_UNTIL)
        elif "fields" in field:
            _add(field["fields"])
