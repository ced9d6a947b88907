"""A consumer's fetch session with one broker (KIP-227): each request names only the partitions that changed.

Kafka's class is `FetchSessionHandler`. A broker without room for a session answers with the id 0; then all
requests are full.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from tidelog.client.core.request_parts import FETCHED_PARTITIONS
from tidelog.model.errors import ErrorCode
from tidelog.model.protocol_values import FIRST_INCREMENTAL_EPOCH, INITIAL_EPOCH, NO_SESSION, next_epoch
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition


class SessionRequest(NamedTuple):
    """The part of a fetch request that belongs to its session."""

    session_id: int
    epoch: int
    changed: tuple[TopicPartition, ...]
    """The partitions that the broker does not know, or knows with another offset or leader epoch."""
    forgotten: tuple[TopicPartition, ...]
    read: tuple[TopicPartition, ...]
    """The wanted partitions that the broker reads from the wanted offsets."""
    topic_ids: Mapping[str, UUID]
    """The ids of all topics of the request and the response."""

    @property
    def has_ids(self) -> bool:
        return ZERO_TOPIC_ID not in self.topic_ids.values()


class FetchSession:
    """The state of one session. One request is in flight at a time."""

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._known: dict[TopicPartition, tuple[int, int]] = {}
        self._topic_ids: dict[str, UUID] = {}
        self._left: dict[TopicPartition, None] = {}
        """The partitions for which the last request had no room."""

    def request(
        self, wanted: Mapping[TopicPartition, tuple[int, int]], topic_ids: Mapping[str, UUID]
    ) -> SessionRequest:
        """Returns what to send so that the broker reads exactly these partitions, with their offsets and
        leader epochs. What exceeds FETCHED_PARTITIONS is left to the next requests, and comes first there.
        """
        ids = {place.topic: topic_ids.get(place.topic, ZERO_TOPIC_ID) for place in wanted}
        if any(ids.get(topic, known) != known for topic, known in self._topic_ids.items()):
            self.failed()  # a topic was deleted and created again
        if (ZERO_TOPIC_ID in ids.values()) != (ZERO_TOPIC_ID in self._topic_ids.values()):
            self.failed()  # another version of the request names topics otherwise
        if self._epoch == INITIAL_EPOCH:
            self._known = {}
            self._topic_ids = {}
        known = self._known
        changed = [place for place, position in wanted.items() if known.get(place) != position]
        unwanted = [place for place in known if place not in wanted]
        forgotten = unwanted[:FETCHED_PARTITIONS]
        if self._left:  # they come first, in their order
            turns = {place: turn for turn, place in enumerate(self._left)}
            changed.sort(key=lambda place: turns.get(place, len(turns)))
        room = FETCHED_PARTITIONS - len(forgotten)
        self._left = dict.fromkeys(changed[room:])
        read = tuple(place for place in wanted if place not in self._left) if self._left else tuple(wanted)
        for place in forgotten:
            del known[place]
        for place in changed[:room]:
            known[place] = wanted[place]
        all_ids = {**self._topic_ids, **ids}
        self._topic_ids = ids if len(forgotten) == len(unwanted) else all_ids
        return SessionRequest(
            self._session_id, self._epoch, tuple(changed[:room]), tuple(forgotten), read, all_ids
        )

    def answered(self, session_id: int) -> None:
        """The broker took the request."""
        if self._epoch == INITIAL_EPOCH:
            self._session_id = session_id
            self._epoch = INITIAL_EPOCH if session_id == NO_SESSION else FIRST_INCREMENTAL_EPOCH
        else:
            self._epoch = next_epoch(self._epoch)

    def refused(self, code: int) -> None:
        """The broker refused the request. The next one opens another session."""
        self.failed()
        if code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._session_id = NO_SESSION

    def failed(self) -> None:
        """No response arrived. The next request opens another session and closes this one."""
        self._epoch = INITIAL_EPOCH
