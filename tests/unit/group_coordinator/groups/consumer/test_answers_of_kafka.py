"""The core's responses to random actions of members equal those of Apache Kafka 4.3."""

from __future__ import annotations

from grouplab.consumer_lab import ConsumerLab
from grouplab.consumer_script import ANSWERS_OF_KAFKA, TOPICS, answers
from grouplab.kafka_answers import LabBroker, check_answers


def test_answers_are_those_of_kafka() -> None:
    lab = ConsumerLab(uuids="{:022}")
    for name, partitions in TOPICS.items():
        lab.set_topic(name, partitions)
    check_answers(answers(LabBroker(lab)), ANSWERS_OF_KAFKA, more_than=1_000)
