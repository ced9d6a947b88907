"""The core's responses to random actions of members equal those of Apache Kafka 4.3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: generated messages have no common base

from grouplab.classic_script import CLIENT_ID
from grouplab.streams_lab import StreamsLab
from grouplab.streams_script import ANSWERS_OF_KAFKA, SETTINGS, TOPICS, answers
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import response_decoder, response_encoder


class LabBroker:
    def __init__(self) -> None:
        self._lab = StreamsLab(**SETTINGS)
        for name, partitions in TOPICS.items():
            self._lab.set_topic(name, partitions)

    def send(self, request: Any, version: int) -> Callable[[], Any]:
        key = ApiKey(request.API_KEY)
        number = self._lab.send(key, version, request, CLIENT_ID)

        def receive() -> Any:
            body = b"".join(response_encoder(key, version)(self._lab.answers[number]))
            return response_decoder(key, version)(memoryview(body), 0)[0]

        return receive

    def wait(self, milliseconds: int) -> None:
        self._lab.pass_time(milliseconds)


def test_answers_are_those_of_kafka() -> None:
    expected = ANSWERS_OF_KAFKA.read_text().splitlines()
    found = answers(LabBroker())
    differing = [pair for pair in zip(expected, found, strict=False) if pair[0] != pair[1]]
    assert not differing, f"{len(differing)}"
    assert len(found) == len(expected) > 1_000
