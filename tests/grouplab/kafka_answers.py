"""The responses of Apache Kafka to compare with: those of Java programs in this directory, which answer each
input line with one line, and recordings of scripts, which a core in virtual time must repeat.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any  # Any: generated messages have no common base

from brokerlab.kafka_jars import JAVA_OPTIONS
from grouplab.shard_lab import ShardLab
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import response_decoder, response_encoder

TIMEOUT_S = 240


def ask_java(jars: Path, program: Path, lines: list[str]) -> list[str]:
    command = ["java", *JAVA_OPTIONS, "-Dfile.encoding=UTF-8", "-cp", f"{jars}/*", str(program)]
    text = "".join(line + "\n" for line in lines)
    done = subprocess.run(
        command, input=text, capture_output=True, encoding="utf-8", timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = done.stdout.removesuffix("\n").split("\n")
    assert len(answers) == len(lines)
    return answers


class LabBroker:
    """The broker of a script. Waiting for a response lets time pass as long as there are timers.

    `ms_per_request` is the time that passes after each request.
    """

    def __init__(self, lab: ShardLab, client_id: str = "client", ms_per_request: int = 0) -> None:
        self._lab = lab
        self._client_id = client_id
        self._ms_per_request = ms_per_request

    def send(self, request: Any, version: int) -> Callable[[], Any]:
        key = ApiKey(request.API_KEY)
        number = self._lab.send(key, version, request, self._client_id)
        if self._ms_per_request:
            self._lab.pass_time(self._ms_per_request)

        def receive() -> Any:
            while number not in self._lab.answers:
                self._lab.pass_time(100)
            body = b"".join(response_encoder(key, version)(self._lab.answers[number]))
            return response_decoder(key, version)(memoryview(body), 0)[0]

        return receive

    def wait(self, milliseconds: int) -> None:
        self._lab.pass_time(milliseconds)


def check_answers(found: list[str], recording: Path, *, more_than: int) -> None:
    """Fails if the lines of a script differ from those in the recording of Apache Kafka, or are too few."""
    expected = recording.read_text().splitlines()
    differing = [pair for pair in zip(expected, found, strict=False) if pair[0] != pair[1]]
    assert not differing, f"{len(differing)} lines differ"
    assert len(found) == len(expected) > more_than
