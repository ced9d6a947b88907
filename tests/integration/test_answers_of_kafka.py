"""tidelog answers as Apache Kafka 4.3.1 does, in all versions of all APIs, also requests that are not valid.

`answerslab` has the questions, the recording of Kafka's answers and the reasons for other answers.
"""

from __future__ import annotations

from collections.abc import Callable

from answerslab.differences import DIFFERENCES, DIFFERENCES_OF_PLACES
from answerslab.page import PAGE, RECORDING, compare, page, read, versions_in, versions_of
from answerslab.script import SETTINGS, ask_all
from brokerlab.broker_process import BrokerProcess


def test_answers_are_those_of_kafka(start_broker: Callable[..., BrokerProcess]) -> None:
    kafkas = read(RECORDING.read_text())
    ours = ask_all(start_broker(SETTINGS).bootstrap, versions_in(kafkas))
    compare(kafkas, ours, DIFFERENCES)


def test_every_difference_has_a_reason() -> None:
    for differences in (DIFFERENCES, DIFFERENCES_OF_PLACES):
        assert all(entry.reason for entry in differences)
        named = [(entry.api, entry.case, v) for entry in differences for v in versions_of(entry.versions)]
        assert len(named) == len(set(named))


def test_the_page_states_these_answers() -> None:
    assert PAGE.read_text() == page(), "python -m answerslab --page writes docs/answers.md"
