"""Apache Kafka decodes our bytes to the same values, field by field, and encodes them to the same bytes, for
every message in every version.

This is the only oracle for the records of coordinators and of KRaft, and for the versions of Kafka 4.4: kio
has none of them.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, given, settings

import brokerlab
from brokerlab.kafka_jars import JAVA_OPTIONS, KafkaUnavailableError, find_jars
from brokerlab.messages import messages_of, payload_classes, record_classes, versions_of
from tidelog.wire import codec
from tidelog.wire.schema import Message

EXAMPLES = 4
TIMEOUT_S = 240
ORACLE = Path(brokerlab.__file__).with_name("KafkaMessages.java")
PACKAGES = {
    "group": "org.apache.kafka.coordinator.group.generated",
    "share": "org.apache.kafka.coordinator.share.generated",
    "transaction": "org.apache.kafka.coordinator.transaction.generated",
}
OWNERS = {"TransactionLog": "transaction", "ShareSnapshot": "share", "ShareUpdate": "share"}
"""The coordinators of records by the beginnings of their names. All others are of groups."""

pytestmark = [pytest.mark.java, pytest.mark.integration]


def _java_class(message: type[Message]) -> str:
    if message.__module__.startswith("tidelog.wire.messages.records."):
        if not hasattr(message, "API_KEY"):
            return f"org.apache.kafka.common.message.{message.__name__}"
        if message.__module__.endswith(".kraft_metadata"):
            return f"org.apache.kafka.common.metadata.{message.__name__}"
        owner = next((owner for name, owner in OWNERS.items() if message.__name__.startswith(name)), "group")
        return f"{PACKAGES[owner]}.{message.__name__}"
    return f"org.apache.kafka.common.message.{message.__name__}Data"


def _examples(message: type[Message], version: int) -> list[Any]:
    made: list[Any] = []

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(messages_of(message, version))
    def collect(value: Any) -> None:
        made.append(value)

    collect()
    return made


def _cases() -> Iterator[tuple[type[Message], int, Any, bytes]]:
    for message in payload_classes() + record_classes():
        for version in versions_of(message):
            for value in _examples(message, version):
                yield message, version, value, b"".join(codec.encoder(message, version)(value))


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _same(ours: Any, theirs: Any) -> bool:
    """Returns whether Kafka's JSON represents the same value as ours."""
    if isinstance(theirs, dict):
        return all(_same_field(ours, _snake(name), value) for name, value in theirs.items())
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    if isinstance(ours, UUID):
        return base64.urlsafe_b64encode(ours.bytes).rstrip(b"=").decode() == theirs
    if isinstance(ours, bytes):
        return base64.b64encode(ours).decode() == theirs
    return bool(ours == theirs)


def _same_field(ours: Any, name: str, theirs: Any) -> bool:
    if name.endswith("_size_in_bytes") and not hasattr(ours, name):
        return len(getattr(ours, name.removesuffix("_size_in_bytes")) or b"") == theirs
    return _same(getattr(ours, name), theirs)


@pytest.fixture(scope="module")
def jars() -> str:
    """Returns the class path: the jars that the codec is generated from, before the libraries of a peer that
    may be older.
    """
    sys.path.insert(0, str(Path(brokerlab.__file__).parents[2] / "tools/codec"))
    from definitions import DefinitionsUnavailableError
    from definitions import find_jars as find_pinned_jars

    try:
        return ":".join([*map(str, find_pinned_jars()), f"{find_jars()}/*"])
    except (KafkaUnavailableError, DefinitionsUnavailableError) as error:
        pytest.skip(str(error))
    finally:
        sys.path.pop(0)


def _ask_kafka(jars: str, lines: list[str]) -> list[str]:
    """Yields the result of KafkaMessages.java for each line."""
    command = ["java", *JAVA_OPTIONS, "-Dfile.encoding=UTF-8", "-cp", jars, str(ORACLE)]
    text = "".join(line + "\n" for line in lines)
    done = subprocess.run(
        command, input=text, capture_output=True, encoding="utf-8", timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = done.stdout.removesuffix("\n").split("\n")
    assert len(answers) == len(lines)
    return answers


def test_apache_kafka_reads_and_writes_the_same(jars: str) -> None:
    cases = list(_cases())
    answers = _ask_kafka(
        jars, [f"{_java_class(message)} {version} {body.hex()}" for message, version, _, body in cases]
    )
    wrong = []
    for (message, version, value, body), answer in zip(cases, answers, strict=True):
        written, _, fields = answer.partition(" ")
        if written != body.hex() or not _same(value, json.loads(fields)):
            wrong.append(f"{message.__name__} {version}: {value!r}\n  ours  {body.hex()}\n  Kafka {answer}")
    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong[:10])


def test_defaults_are_those_of_apache_kafka(jars: str) -> None:
    cases = [(m, v) for m in payload_classes() + record_classes() for v in versions_of(m)]
    answers = _ask_kafka(jars, [f"{_java_class(message)} {version} new" for message, version in cases])
    wrong = []
    for (message, version), answer in zip(cases, answers, strict=True):
        try:
            ours = b"".join(codec.encoder(message, version)(message())).hex()
        except (TypeError, AttributeError) as error:
            ours = f"error {error}"
        if ours != answer.partition(" ")[0]:
            wrong.append(f"{message.__name__} {version}: ours {ours}, Kafka {answer}")
    assert not wrong, "\n".join(wrong)
