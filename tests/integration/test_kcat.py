"""kcat -L, -P, -C, -Q."""

from __future__ import annotations

import json
import subprocess

import pytest

pytestmark = pytest.mark.integration


def run(kcat: str, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        [kcat, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_list(kcat: str, bootstrap: str, topic: str) -> None:
    said = run(kcat, "-b", bootstrap, "-L")
    assert f'topic "{topic}" with 1 partitions' in said
    assert f"at {bootstrap} (controller)" in said
    (found,) = json.loads(run(kcat, "-b", bootstrap, "-L", "-J", "-t", topic))["topics"]
    assert found["topic"] == topic
    assert len(found["partitions"]) == 1


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produce_and_consume(kcat: str, bootstrap: str, topic: str, codec: str) -> None:
    lines = [f"key{i % 7}:value {i}" for i in range(500)]
    produce = ("-b", bootstrap, "-t", topic, "-P", "-K:", "-z", codec, "-H", "from=kcat", "-X", "acks=all")
    run(kcat, *produce, stdin="\n".join(lines) + "\n")
    said = run(
        kcat, "-b", bootstrap, "-t", topic, "-C", "-e", "-q", "-f", "%o %k:%s %h\n", "-X", "check.crcs=true"
    )
    assert said.splitlines() == [f"{i} {line} from=kcat" for i, line in enumerate(lines)]


def test_consume_from_offsets(kcat: str, bootstrap: str, topic: str) -> None:
    run(kcat, "-b", bootstrap, "-t", topic, "-P", stdin="\n".join(map(str, range(100))) + "\n")
    consume = ("-b", bootstrap, "-t", topic, "-C", "-e", "-q")
    assert run(kcat, *consume, "-o", "97").split() == ["97", "98", "99"]
    assert run(kcat, *consume, "-o", "-2").split() == ["98", "99"]
    assert run(kcat, *consume, "-o", "beginning", "-c", "2").split() == ["0", "1"]


def test_query_offsets(kcat: str, bootstrap: str, topic: str) -> None:
    run(kcat, "-b", bootstrap, "-t", topic, "-P", stdin="a\nb\nc\n")
    assert run(kcat, "-b", bootstrap, "-Q", "-t", f"{topic}:0:-1").split()[-1] == "3"
    assert run(kcat, "-b", bootstrap, "-Q", "-t", f"{topic}:0:-2").split()[-1] == "0"
