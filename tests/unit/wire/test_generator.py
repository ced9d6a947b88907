"""tools/codec/generate.py without Kafka's jars, and the names that it generates."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
GENERATE = ROOT / "tools/codec/generate.py"


def _check(home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("REQUIRE_ALL", "XDG_CACHE_HOME", "KAFKA_HOME")
    }
    env = kept | {"HOME": str(home), "PATH": str(home)} | environment
    return subprocess.run(
        [sys.executable, GENERATE, "--check"], env=env, capture_output=True, text=True, check=False
    )


def test_without_maven_the_check_is_skipped_with_its_reason(tmp_path: Path) -> None:
    done = _check(tmp_path)
    assert done.returncode == 0
    assert "skipped" in done.stderr
    assert "Maven (mvn) is not installed" in done.stderr


def test_without_maven_the_check_fails_if_everything_is_required(tmp_path: Path) -> None:
    done = _check(tmp_path, REQUIRE_ALL="1")
    assert done.returncode == 1
    assert "Maven (mvn) is not installed" in done.stderr


@pytest.fixture
def python_source(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(GENERATE.parent))
    return pytest.importorskip("python_source")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("TopicData", "topic_data"),
        ("ISRNodes", "isr_nodes"),
        ("Enable2Pc", "enable2_pc"),
        ("groupId", "group_id"),
    ],
)
def test_names(python_source: object, name: str, expected: str) -> None:
    assert python_source.snake(name) == expected  # type: ignore[attr-defined]


def test_defaults_and_versions(python_source: object) -> None:
    definition = {
        "type": "request",
        "name": "TideRequest",
        "apiKey": 1000,
        "validVersions": "1-3",
        "flexibleVersions": "2+",
        "fields": [
            {"name": "Gone", "type": "int32", "versions": "0"},
            {"name": "NotYet", "type": "int32", "versions": "3+"},
            {"name": "Hex", "type": "int32", "versions": "0+", "default": "0x7fffffff"},
            {"name": "Null", "type": "string", "versions": "0+", "nullableVersions": "0+", "default": "null"},
            {
                "name": "NoDefault",
                "type": "[]int32",
                "versions": "0+",
                "nullableVersions": "0+",
                "default": None,
            },
            {"name": "OnlyTagged", "type": "int16", "taggedVersions": "2+", "tag": 0, "default": -1},
        ],
    }
    lines = python_source.MessageSource(definition, unstable=True).write_message({})  # type: ignore[attr-defined]
    assert [line.strip() for line in lines[2:6]] == [
        "hex: int = 2147483647",
        "null: str | None = None",
        "no_default: list[int] | None = field(default_factory=list)",
        "only_tagged: int = -1",
    ]
    assert "    VERSIONS: ClassVar[tuple[int, int]] = (1, 2)" in lines
    assert '        F("only_tagged", "int16", "2+", tagged="2+", tag=0),' in lines
