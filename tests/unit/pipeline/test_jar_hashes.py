"""Fetched JARs are used only if each of them is the expected one."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.session import DELTA_VERSION, JAR_SHA256, SCALA_VERSION, SPARK_VERSION, check_hashes

EXPECTED = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("a.jar", "b.jar")}


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    for name in EXPECTED:
        (tmp_path / name).write_text(name)
    return tmp_path


def test_the_expected_jars_are_accepted(jars: Path) -> None:
    check_hashes(jars, EXPECTED)


def test_a_changed_jar_is_refused(jars: Path) -> None:
    (jars / "b.jar").write_text("changed")
    with pytest.raises(PipelineError, match=r"the JAR b\.jar has the SHA-256"):
        check_hashes(jars, EXPECTED)


def test_a_missing_and_a_further_jar_are_refused(jars: Path) -> None:
    (jars / "c.jar").write_text("more")
    with pytest.raises(PipelineError, match=r"c\.jar was fetched, but is not expected"):
        check_hashes(jars, EXPECTED)
    (jars / "c.jar").unlink()
    (jars / "a.jar").unlink()
    with pytest.raises(PipelineError, match=r"a\.jar is expected, but was not fetched"):
        check_hashes(jars, EXPECTED)


def test_the_table_belongs_to_the_versions() -> None:
    assert f"spark-sql-kafka-0-10_{SCALA_VERSION}-{SPARK_VERSION}.jar" in JAR_SHA256
    assert f"delta-spark_{SCALA_VERSION}-{DELTA_VERSION}.jar" in JAR_SHA256
    assert all(re.fullmatch(r"[0-9a-f]{64}", value) for value in JAR_SHA256.values())
