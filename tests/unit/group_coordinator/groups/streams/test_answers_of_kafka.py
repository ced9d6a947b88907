"""The core's responses to random actions of members equal those of Apache Kafka 4.3."""

from __future__ import annotations

from grouplab.classic_script import CLIENT_ID
from grouplab.kafka_answers import LabBroker, check_answers
from grouplab.streams_lab import StreamsLab
from grouplab.streams_script import ANSWERS_OF_KAFKA, SETTINGS, TOPICS, answers


def test_answers_are_those_of_kafka() -> None:
    lab = StreamsLab(**SETTINGS)
    for name, partitions in TOPICS.items():
        lab.set_topic(name, partitions)
    check_answers(answers(LabBroker(lab, CLIENT_ID)), ANSWERS_OF_KAFKA, more_than=1_000)
