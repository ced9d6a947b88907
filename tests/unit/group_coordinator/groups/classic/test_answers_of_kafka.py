"""The core's responses to a script of requests in every version equal those of Apache Kafka 4.4."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any  # Any: generated messages have no common base

from grouplab.classic_script import ANSWERS_OF_KAFKA, CLIENT_ID, answers
from grouplab.shard_lab import ShardLab
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import response_decoder, response_encoder


class LabBroker:
    """A core in virtual time. Waiting for a response lets time pass as long as there are timers."""

    def __init__(self) -> None:
        settings = dataclasses.replace(BrokerSettings(), group_initial_rebalance_delay_ms=0)
        self._lab = ShardLab(settings, uuids="{:022}")

    def send(self, request: Any, version: int) -> Callable[[], Any]:
        key = ApiKey(request.API_KEY)
        number = self._lab.send(key, version, request, client_id=CLIENT_ID)
        self._lab.pass_time(1)

        def receive() -> Any:
            while number not in self._lab.answers:
                self._lab.pass_time(100)
            body = b"".join(response_encoder(key, version)(self._lab.answers[number]))
            return response_decoder(key, version)(memoryview(body), 0)[0]

        return receive

    def wait(self, milliseconds: int) -> None:
        self._lab.pass_time(milliseconds)


def test_answers_are_those_of_kafka() -> None:
    expected = ANSWERS_OF_KAFKA.read_text().splitlines()
    found = answers(LabBroker())
    differing = [pair for pair in zip(expected, found, strict=False) if pair[0] != pair[1]]
    assert not differing
    assert len(found) == len(expected) > 500
