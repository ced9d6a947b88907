"""Checks of the names and numbers in messages of other services, where the messages arrive.

A topic name becomes the name of a directory, and a number becomes an offset in a file, so a wrong value is
refused before any code uses it, whoever sent it. Every function raises ValueError with one sentence, and the
whole message is then refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Final

from tidelog.model.brokers import MAX_PORT
from tidelog.model.topics import TopicPartition, topic_name_problem

MAX_PROBLEM_CHARS: Final = 400
"""Length of a reported problem, which contains the name."""


def topic_name(name: str) -> str:
    problem = topic_name_problem(name)
    if problem is not None:
        raise ValueError(problem[:MAX_PROBLEM_CHARS])
    return name


def peer_partition(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(topic_name(topic), not_negative("partition", partition))


def not_negative(what: str, number: int) -> int:
    """Checks an id, epoch, offset or count."""
    if number < 0:
        raise ValueError(f"the {what} {number} is negative")
    return number


def known_or_none(what: str, number: int) -> int:
    """Checks a number for which -1 stands for "none" or "unknown"."""
    if number < -1:
        raise ValueError(f"the {what} {number} is less than -1")
    return number


def broker_ids(what: str, ids: Iterable[int]) -> tuple[int, ...]:
    checked = tuple(ids)
    if checked and min(checked) < 0:
        raise ValueError(f"the {what} {checked} contains a negative broker id")
    return checked


def port(number: int) -> int:
    if not 0 <= number <= MAX_PORT:
        raise ValueError(f"the port {number} is not between 0 and {MAX_PORT}")
    return number


def topic_ids(ids: Mapping[str, bytes]) -> dict[str, uuid.UUID]:
    return {topic_name(topic): uuid.UUID(bytes=topic_id) for topic, topic_id in ids.items()}
