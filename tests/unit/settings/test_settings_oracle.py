"""Apache Kafka's ConfigDef is the oracle: it accepts, refuses and parses each value as tidelog does."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tidelog.settings.broker_settings import BROKER_SETTINGS
from tidelog.settings.network_settings import LEAST_CONNECTIONS
from tidelog.settings.setting import Setting, SettingError, SettingType
from tidelog.settings.topic_settings import TOPIC_SETTINGS

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
JAVA_TIMEOUT_S = 120
NUMBERS = (
    *("0", "1", "-1", "-2", "-3", "+7", " 5 ", "5 6", "", "x", "1.0", "1e3", "0x10", "1_000", "007"),
    *("10", "22", "23", "100", "1024", "1048575", "1048576", "32767", "32768", "2147483647", "2147483648"),
    *("-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808"),
    *("-9223372036854775809", "\u0663", "1\u00a0"),
)
FLOATS = (
    *("0", "0.0", "0.5", ".5", "5.", "1", "1.0", "1.5", "-0.1", "1e-1", "1E-1", "0.5f", "0.5d", "x", ""),
    *("NaN", "nan", "inf", "1_0.5", "0.00001", "0.001", "0.00099"),
)
WORDS = (
    *("", "true", "TRUE", " false ", "yes", "1", "producer", "GZIP", "gzip", "zstd", "compact", "delete"),
    *("compact,delete", "compact , delete", "compact,,delete", "delete,", ",", " ", "delete,delete"),
    *("CreateTime", "logappendtime", "none", "UPGRADE", "upgrade", "a,b", "*", "0:1", "0:1,1:2"),
    *("0:1, 1:2", "*,0:1", "0:", "0:1:2", "a:b", "PLAINTEXT://:9092"),
)
KINDS = {
    SettingType.INT: NUMBERS,
    SettingType.SHORT: NUMBERS,
    SettingType.LONG: NUMBERS,
    SettingType.DOUBLE: FLOATS,
}
# Kafka accepts a single comma as a list of throttled replicas; tidelog does not.
STRICTER_HERE = {
    ("leader.replication.throttled.replicas", ","),
    ("follower.replication.throttled.replicas", ","),
}
RANDOM_NUMBERS_EACH = 6
SEED = 43


def brokerlab(module: str) -> ModuleType:
    path = REPOSITORY / "tests" / "brokerlab" / f"{module}.py"
    specification = importlib.util.spec_from_file_location(f"brokerlab_{module}_for_settings", path)
    assert specification is not None
    assert specification.loader is not None
    loaded = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def jars() -> Path:
    kafka_jars = brokerlab("kafka_jars")
    try:
        found: Path = kafka_jars.find_jars()
    except kafka_jars.KafkaUnavailableError as error:
        if os.environ.get("REQUIRE_ALL") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))
    return found


def run_java(jars: Path, source: Path, stdin: str) -> str:
    command = ["java", "-cp", f"{jars}/*", str(source)]
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def probes(own: set[str]) -> Iterator[tuple[str, Setting, str]]:
    chance = random.Random(SEED)
    for table, definitions in (("broker", BROKER_SETTINGS), ("topic", TOPIC_SETTINGS)):
        for name, definition in definitions.items():
            if name in own:
                continue
            for text in KINDS.get(definition.type, WORDS):
                yield table, definition, text
            if definition.type in KINDS:
                for _ in range(RANDOM_NUMBERS_EACH):
                    yield table, definition, str(chance.randrange(-(10 ** chance.randrange(1, 20)), 10**10))


HIGHER_LEAST = {"max.connections": LEAST_CONNECTIONS, "max.connection.creation.rate": 1}
"""The settings whose smallest values would keep every client out."""


def is_same(definition: Setting, actual: tuple[bool, str | None], expected: tuple[bool, str | None]) -> bool:
    if definition.type is SettingType.DOUBLE and actual[1] is not None and expected[1] is not None:
        # Java before 19 does not always print the shortest digits of a double.
        same = float(actual[1]) == float(expected[1]) or actual == expected
        return same and ("E" in actual[1]) == ("E" in expected[1])
    return actual == expected


def ours(definition: Setting, text: str) -> tuple[bool, str | None]:
    try:
        return True, definition.format(definition.parse(text))
    except SettingError:
        return False, None


@pytest.mark.java
def test_values_are_accepted_and_refused_as_in_kafka(jars: Path) -> None:
    kafka = json.loads((HERE / "kafka_settings.json").read_text())
    own = (set(BROKER_SETTINGS) | set(TOPIC_SETTINGS)) - set(kafka["broker"]) - set(kafka["topic"])
    cases = list(probes(own))
    lines = [
        f"{table}\t{definition.name}\t{base64.b64encode(text.encode()).decode()}"
        for table, definition, text in cases
    ]
    verdicts = run_java(jars, HERE / "KafkaSettingVerdicts.java", "\n".join(lines) + "\n").splitlines()
    assert len(verdicts) == len(cases)
    differences = []
    for (table, definition, text), verdict in zip(cases, verdicts, strict=True):
        kind, _, rest = verdict.partition("\t")
        expected = (True, base64.b64decode(rest).decode()) if kind == "ok" else (False, None)
        actual = ours(definition, text)
        is_stricter = (definition.name, text) in STRICTER_HERE or (
            definition.name in HIGHER_LEAST and expected[0] and int(text) < HIGHER_LEAST[definition.name]
        )
        if not is_same(definition, actual, expected) and not is_stricter:
            differences.append(f"{table} {definition.name} = {text!r}: {actual}, Kafka: {expected} {rest}")
    assert not differences, f"{len(differences)} of {len(cases)}:\n" + "\n".join(differences[:40])


@pytest.mark.java
def test_the_table_of_kafkas_settings_is_current(jars: Path) -> None:
    printed = run_java(jars, REPOSITORY / "tools" / "settings" / "KafkaSettingsTable.java", "")
    assert printed == (HERE / "kafka_settings.json").read_text()
