"""`tidelog dump-log`: its output, and each kind of damage."""

from __future__ import annotations

import errno
import json
import struct
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tidelog.cli.main import main
from tidelog.log_format.entries import SnapshotEntry, encode_snapshot
from tidelog.records.batch import EndTransactionMarker
from tidelog.records.builder import build_batch, build_end_transaction_batch
from tidelog.records.compression import Compression
from tidelog.records.record import Record

NAME = "00000000000000000010"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["dump-log", *map(str, arguments)])


def batches() -> list[bytes]:
    first = build_batch(
        [Record(10, 1000, b"k", b"v0", (("h", b"x"),)), Record(11, 1500, None, b"v1")], leader_epoch=4
    )
    second = build_batch(
        [Record(12, 1200, b"k", None)],
        compression=Compression.ZSTD,
        producer_id=7,
        producer_epoch=1,
        base_sequence=3,
        is_transactional=True,
    )
    third = build_end_transaction_batch(
        EndTransactionMarker(True, 5), base_offset=13, timestamp_ms=2000, producer_id=7, producer_epoch=1
    )
    return [bytes(first), bytes(second), bytes(third)]


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Creates a partition's directory like a broker's."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    first, second, third = batches()
    (directory / f"{NAME}.log").write_bytes(first + second + third)
    (directory / f"{NAME}.index").write_bytes(struct.pack(">iiii", 1, 0, 2, len(first)) + bytes(80))
    (directory / f"{NAME}.timeindex").write_bytes(struct.pack(">qiqi", 1500, 1, 2000, 3))
    (directory / f"{NAME}.snapshot").write_bytes(
        encode_snapshot([SnapshotEntry(7, 1, 3, 12, 0, 1200, -1, 12)])
    )
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n4 10\n")
    (directory / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    (directory / "notes.txt").write_text("not ours")
    return directory


def test_a_whole_directory(partition: Path) -> None:
    result = run(partition.parent)
    assert result.exit_code == 0, result.stderr
    assert "Log starting offset: 10" in result.stdout
    assert "baseOffset: 10 lastOffset: 11 count: 2" in result.stdout
    assert "partitionLeaderEpoch: 4" in result.stdout
    assert "compresscodec: zstd" in result.stdout
    assert "offset: 12 position: " in result.stdout
    assert "timestamp: 2000 offset: 13" in result.stdout
    assert "producerId: 7 producerEpoch: 1 lastSequence: 3 lastOffset: 12" in result.stdout
    assert "leaderEpoch: 4 startOffset: 10" in result.stdout
    assert "topic_id: AAAAAAAAAAAAAAAAAAAAAQ" in result.stdout
    assert "notes.txt" not in result.stdout
    assert "| offset" not in result.stdout


def test_records_and_their_data(partition: Path) -> None:
    result = run("--deep-iteration", "--files", partition / f"{NAME}.log")
    lines = [line for line in result.stdout.splitlines() if line.startswith("| ")]
    assert lines[0] == "| offset: 10 CreateTime: 1000 keySize: 1 valueSize: 2 sequence: -1 headerKeys: [h]"
    assert lines[2].startswith("| offset: 12 CreateTime: 1200 keySize: 1 valueSize: -1 sequence: 3")
    assert lines[3].endswith("endTxnMarker: COMMIT coordinatorEpoch: 5")
    with_data = run("--print-data-log", partition / f"{NAME}.log").stdout
    assert "headerKeys: [h] key: k payload: v0" in with_data


@pytest.mark.parametrize(
    ("name", "position", "part"),
    [
        (f"{NAME}.log", -1, "the batch has a wrong CRC"),
        (f"{NAME}.log", 8, "are an incomplete batch"),
        (f"{NAME}.log", 7, "offset 12 follows"),
        (f"{NAME}.index", 3, "the batch there ends at offset 11"),
        (f"{NAME}.index", 7, "no batch begins there"),
        (f"{NAME}.timeindex", 7, "the batch has 1500"),
        (f"{NAME}.timeindex", 11, "beyond the segment's end"),
        (f"{NAME}.snapshot", 20, "the CRC of the producer snapshot does not match"),
        ("leader-epoch-checkpoint", 2, "entries announced"),
    ],
)
def test_damage_is_found(partition: Path, name: str, position: int, part: str) -> None:
    content = bytearray((partition / name).read_bytes())
    content[position] ^= 0x04
    (partition / name).write_bytes(content)
    result = run(partition / name)
    assert result.exit_code == 1
    assert part in result.stdout + result.stderr
    assert result.stderr.startswith("tidelog: ")
    assert str(partition / name) in result.stderr


def test_a_torn_tail(partition: Path) -> None:
    segment = partition / f"{NAME}.log"
    segment.write_bytes(segment.read_bytes()[:-1])
    result = run(segment)
    assert result.exit_code == 1
    assert "bytes are an incomplete batch" in result.stderr


def test_max_bytes_limits_the_output(partition: Path) -> None:
    result = run("--max-bytes", len(batches()[0]) + 3, partition / f"{NAME}.log")
    assert result.exit_code == 0
    assert result.stdout.count("baseOffset") == 1


def test_files_of_other_kinds_are_refused(partition: Path) -> None:
    assert run(partition / "notes.txt").exit_code == 1
    (partition / "empty").mkdir()
    assert "contains no segments" in run(partition / "empty").stderr


def test_a_reader_that_ends_early_is_no_problem_of_the_file(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tidelog dump-log DIR | head` blamed the file for the closed pipe."""
    printed: list[object] = []

    def echo(message: object = None, **options: object) -> None:
        if options.get("err"):
            pytest.fail(f"printed on standard error: {message}")
        printed.append(message)
        if len(printed) > 1:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(click, "echo", echo)
    result = run(partition)
    assert len(printed) == 2
    assert result.exit_code == 1


def test_json_has_the_same_fields_as_an_object_in_each_line(partition: Path) -> None:
    result = run(partition, "--print-data-log", "--format", "json")
    assert result.exit_code == 0
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    segment = [line for line in lines if line["file"] == str(partition / f"{NAME}.log")]
    assert [line["kind"] for line in segment] == ["segment", "batch", "record", "record"] + [
        "batch",
        "record",
    ] * 2
    assert segment[0]["log_starting_offset"] == 10
    batch = segment[1]
    assert (batch["base_offset"], batch["partition_leader_epoch"], batch["isvalid"]) == (10, 4, True)
    assert batch["is_transactional"] is False
    assert batch["create_time"] == 1500
    assert segment[2] == {
        "file": str(partition / f"{NAME}.log"),
        "kind": "record",
        "offset": 10,
        "create_time": 1000,
        "key_size": 1,
        "value_size": 2,
        "sequence": -1,
        "header_keys": ["h"],
        "key": "k",
        "payload": "v0",
    }
    assert segment[-1]["end_txn_marker"] == "COMMIT"
    others = {"index_entry", "time_index_entry", "producer", "leader_epoch", "text"}
    assert others <= {line["kind"] for line in lines}
    assert next(line["text"] for line in lines if line["kind"] == "text") == "version: 0"


def test_json_contains_problems(partition: Path) -> None:
    segment = partition / f"{NAME}.log"
    segment.write_bytes(segment.read_bytes() + b"x" * 100)
    result = run(segment, "--format", "json")
    assert result.exit_code == 1
    problems = [line for line in map(json.loads, result.stdout.splitlines()) if line["kind"] == "problem"]
    assert problems and problems[0]["file"] == str(segment)


@pytest.mark.parametrize("name", ["table", "plain"])
def test_the_other_formats_are_that_of_kafka(partition: Path, name: str) -> None:
    assert run(partition, "--format", name).stdout == run(partition).stdout
