"""The core's responses to a script of requests in every version equal those of Apache Kafka 4.4."""

from __future__ import annotations

import dataclasses

from grouplab.classic_script import ANSWERS_OF_KAFKA, CLIENT_ID, answers
from grouplab.kafka_answers import LabBroker, check_answers
from grouplab.shard_lab import ShardLab
from tidelog.settings.broker_settings import BrokerSettings


def test_answers_are_those_of_kafka() -> None:
    settings = dataclasses.replace(BrokerSettings(), group_initial_rebalance_delay_ms=0)
    broker = LabBroker(ShardLab(settings, uuids="{:022}"), CLIENT_ID, ms_per_request=1)
    check_answers(answers(broker), ANSWERS_OF_KAFKA, more_than=500)
