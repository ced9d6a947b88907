"""tidelog answers as Apache Kafka 4.3.1 does, in all versions of all APIs, also requests that are not valid.

`answerslab` has the questions, the recording of Kafka's answers and the reasons for other answers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import answerslab
from answerslab.differences import DIFFERENCES
from answerslab.page import PAGE, page
from answerslab.recording import lines, read, versions_in, versions_of
from answerslab.script import SETTINGS, ask_all
from brokerlab.broker_process import BrokerProcess

RECORDING = Path(answerslab.__file__).with_name("answers_of_kafka.txt")


def test_answers_are_those_of_kafka(start_broker: Callable[..., BrokerProcess]) -> None:
    kafkas = read(RECORDING.read_text())
    ours = ask_all(start_broker(SETTINGS).bootstrap, versions_in(kafkas))
    different = {row for row in kafkas if ours.get(row) != kafkas[row]}
    listed = {
        (entry.api, entry.case, version) for entry in DIFFERENCES for version in versions_of(entry.versions)
    }
    assert ours.keys() == kafkas.keys(), "the questions have changed, so Kafka has to be asked again"
    new = different - listed
    assert not new, "\n".join(
        ["answers that differ from Kafka's:"]
        + [f"kafka:   {line}" for line in lines({row: kafkas[row] for row in sorted(new)})]
        + [f"tidelog: {line}" for line in lines({row: ours[row] for row in sorted(new)})]
    )
    assert not listed - different, f"these answers are Kafka's now: {sorted(listed - different)}"


def test_every_difference_has_a_reason() -> None:
    assert all(entry.reason for entry in DIFFERENCES)
    named = [(entry.api, entry.case, v) for entry in DIFFERENCES for v in versions_of(entry.versions)]
    assert len(named) == len(set(named))


def test_the_page_states_these_answers() -> None:
    assert PAGE.read_text() == page(), "python -m answerslab --page writes docs/answers.md"
