"""Randomness for the core's decisions."""

from __future__ import annotations

import random
import uuid

from tidelog.metadata.entries import encode_uuid


class RandomChance:
    """From any `random.Random`: the system's in a process, a seeded one in a simulation."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def topic_id(self) -> uuid.UUID:
        """Never one whose text begins with a dash: command lines would take it for an option."""
        while True:
            topic_id = uuid.UUID(int=self._source.getrandbits(128), version=4)
            if not encode_uuid(topic_id).startswith("-"):
                return topic_id

    def below(self, limit: int) -> int:
        return self._source.randrange(limit)
