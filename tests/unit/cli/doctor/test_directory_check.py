"""`tidelog doctor DIR`: one changed byte in any file of a real data directory is found or does not matter.

After a repair, the broker opens the directory, and every batch before the fault is readable as it was.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result
from hypothesis import example, given, note
from hypothesis import strategies as st

from brokerlab.logs import OwnedLog, read_all
from brokerlab.random_logs import RandomLife, RandomWriter
from tidelog.broker.log.directory_files import read_offsets, read_topic_id, write_offsets
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.log.log_directory import LogDirectory
from tidelog.broker.log.previous_life import DirectoryLock
from tidelog.cli.doctor import directory_repair
from tidelog.cli.doctor.directory_check import CHECKPOINTS, DirectoryReport, check_directory
from tidelog.cli.doctor.directory_repair import Copies, RepairError, repair_directory
from tidelog.cli.doctor.facts import Finding, State
from tidelog.cli.doctor.partition_check import Expected, check_partition
from tidelog.cli.main import main
from tidelog.kernel.instants import WallMs
from tidelog.log_format.directory import CorruptFileError, decode_base_offsets, decode_offsets
from tidelog.log_format.leader_epochs import EpochEntry, LeaderEpochs
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import iterate_headers

NOW_MS = WallMs(1_700_000_000_000)
CLUSTER, NODE, TOPIC_ID = "kafka-cluster", 1, uuid.UUID(int=77)
CONFIG = LogConfig(segment_bytes=20_000, index_interval_bytes=512, file_delete_delay_ms=0)
OVERRIDES = {"retention.ms": "-1"}
PARTITIONS = [TopicPartition("flights", index) for index in range(2)]
IDENTITY = ("meta.properties", ".kafka_cleanshutdown", ".lock")
"""Files that state whose directory it is. Only the cluster knows whether they are right."""


class Written(NamedTuple):
    """A data directory, and the batches of each partition that were written to it."""

    path: Path
    batches: dict[TopicPartition, list[bytes]]


@pytest.fixture(autouse=True)
def no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _fd: None)


def written(path: Path, seed: int) -> Written:
    directory = LogDirectory.open(path, cluster_id=CLUSTER, node_id=NODE)
    batches, snapshots = {}, {}
    for number, key in enumerate(PARTITIONS):
        opened = directory.open_partition(key, TOPIC_ID, CONFIG, now_ms=NOW_MS, topic_settings=OVERRIDES)
        log = OwnedLog(opened)
        writer = RandomWriter(seed + number, NOW_MS)
        for epoch in (3, 4, 17):
            writer.leader_epoch = epoch
            log.leader_epochs.assign(epoch, log.log_end_offset)
            log.persist_leader_epochs()
            writer.write(log, 5 if number else 20)
        batches[key] = read_all(log)
        snapshots[key] = log.producer_state.snapshot()
        directory.high_watermarks[key] = log.log_end_offset
    directory.keep_broker_settings(OVERRIDES, {})
    directory.close(broker_epoch=9, producer_snapshots=snapshots)
    return Written(path, batches)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return written(tmp_path_factory.mktemp("whole") / "data", 7)


@pytest.fixture
def sound(whole: Written, tmp_path: Path) -> Iterator[Written]:
    shutil.copytree(whole.path, tmp_path / "data")
    yield Written(tmp_path / "data", whole.batches)


def checked(path: Path) -> DirectoryReport:
    return check_directory(path, lambda _size: None)


def problems(path: Path) -> list[Finding]:
    return [finding for finding in checked(path).all_findings if finding.state is not State.OK]


def test_what_recovery_took_out_of_a_log_is_named_and_can_be_read(sound: Written) -> None:
    partition = sound.path / "flights-0"
    last = max(partition.glob("*.log"))
    names = (f"{last.name}.stranded", f"{last.name}.from-0.1.stranded")
    for name in names:
        shutil.copy(last, partition / name)
    findings = problems(sound.path)
    assert [(each.check, each.state) for each in findings] == [("stranded records", State.WARN)] * 2
    size = last.stat().st_size
    assert {each.text for each in findings} == {
        f"flights-0/{name}: recovery took these {size} bytes out of the log and kept them" for name in names
    }
    assert all("'tidelog dump-log FILE" in each.next_step for each in findings)
    for name in names:
        shown = CliRunner().invoke(main, ["dump-log", str(partition / name)])
        assert shown.exit_code == 0, shown.output
        first = next(iterate_headers(last.read_bytes()))[1].base_offset
        assert f"Log starting offset: {int(last.stem)}" in shown.output
        assert f"baseOffset: {first} " in shown.output
    listed = CliRunner().invoke(main, ["dump-log", str(partition)])
    assert "stranded" not in listed.output


def repaired(path: Path) -> list[str]:
    """Repairs a directory, and returns the lines that say what was changed."""
    lines: list[str] = []
    repair_directory(checked(path), Copies(path, path.with_name("copies")), NOW_MS, lines.append)
    return lines


def readable(path: Path) -> dict[TopicPartition, list[bytes]]:
    """Returns the batches that a broker serves from the directory."""
    directory = LogDirectory.open(path, cluster_id=CLUSTER, node_id=NODE)
    try:
        return {
            key: read_all(OwnedLog(directory.open_partition(key, TOPIC_ID, CONFIG, now_ms=NOW_MS)))
            for key in PARTITIONS
        }
    finally:
        directory.abandon()


def does_not_matter(file: Path, before: bytes, at: int) -> bool:
    """Returns whether a changed byte has no effect, or leads to another value that may be true."""
    now = file.read_bytes()
    if file.name in CHECKPOINTS:
        # Offsets within the log may be true: a checkpoint is only a lower bound of what the log knows.
        try:
            old, new = decode_offsets(before, file), decode_offsets(now, file)
        except CorruptFileError:
            return False
        return old.keys() == new.keys() and all(0 <= new[key] <= old[key] for key in old)
    if file.name == "leader-epoch-checkpoint":
        return list(LeaderEpochs.decode(now)) == list(LeaderEpochs.decode(before))
    if file.name == "segments-checkpoint":
        return decode_base_offsets(now) == decode_base_offsets(before)
    if file.name == "partition.metadata":
        return read_topic_id(file.parent) == TOPIC_ID
    if file.suffix == ".json":
        return bool(json.loads(now) == json.loads(before))
    if file.suffix == ".timeindex":
        # Another offset of the same batch leads to the same batch.
        slot = at - at % 12
        base = int(file.stem)
        old_time, old_offset = struct.unpack_from(">qi", before, slot)
        new_time, new_offset = struct.unpack_from(">qi", now, slot)
        log = file.with_suffix(".log").read_bytes()
        return old_time == new_time and any(
            header.base_offset <= base + old_offset <= header.last_offset
            and header.base_offset <= base + new_offset <= header.last_offset
            for _, header in iterate_headers(log)
        )
    return False


def test_a_sound_directory_has_no_findings(sound: Written) -> None:
    assert problems(sound.path) == []
    report = checked(sound.path)
    assert report.partitions[0].segment_count >= 3
    assert any(sound.path.rglob("*.txnindex"))
    assert readable(sound.path) == sound.batches


@given(st.integers(0, 2**32), st.booleans(), st.booleans())
@example(65926, True, True)  # a batch with a wrong time: its base timestamp is above its greatest one
def test_a_sound_log_has_no_findings_whatever_happened_to_it(
    seed: int, is_compacted: bool, is_clean: bool
) -> None:
    root = Path(tempfile.mkdtemp(prefix="tidelog-doctor-"))
    try:
        with pytest.MonkeyPatch.context() as monkeypatch:
            life = RandomLife(root / "t-0", seed, is_compacted=is_compacted)
            life.go_on(monkeypatch)
        expected = Expected(is_clean, log_start_offset=life.log.log_start_offset)
        life.end(clean=is_clean)
        report = check_partition(life.directory, expected, lambda _size: None)
        # The life does not assign leader epochs, as leaders do. A killed process leaves indexes behind that
        # its recovery builds again.
        lax = {"leader epochs"} | (set() if is_clean else {"offset indexes", "time indexes"})
        assert [finding for finding in report.findings if finding.check not in lax] == []
    finally:
        shutil.rmtree(root)


def change_a_byte(sound: Written, file: Path, at: int, mask: int) -> None:
    """Changes a byte, and asserts that it is found, that it is repaired, and that the log can be read."""
    before = file.read_bytes()
    content = bytearray(before)
    content[at] ^= mask
    file.write_bytes(content)
    found = problems(sound.path)
    if not found:
        assert does_not_matter(file, before, at), f"{file.name}, byte {at}: nothing was found"
        return
    if file.name == "partition.metadata":
        return  # only the cluster knows the right topic id, so there is no repair
    if repaired(sound.path):
        copy = sound.path.with_name("copies") / file.relative_to(sound.path)
        assert copy.read_bytes() == content, "the original was not copied"
    else:  # a log start that contradicts other files, of which only other replicas know the right one
        assert {finding.state for finding in found} == {State.WARN}
        served = readable(sound.path)
        assert all(
            batches[len(batches) - len(served[key]) :] == served[key]
            for key, batches in sound.batches.items()
        )
        return
    assert [finding for finding in problems(sound.path) if finding.state is State.FAIL] == []
    served = readable(sound.path)
    for key, batches in sound.batches.items():
        sound_until = len(batches)
        if file.suffix == ".log" and file.parent.name == str(key):
            sound_until = sum(
                (header.base_offset < int(file.stem))
                for batch in batches
                for _, header in iterate_headers(batch)
            )
            sound_until += sum(
                position + header.size_bytes <= at for position, header in iterate_headers(before)
            )
        assert served[key][:sound_until] == batches[:sound_until]


def test_a_log_start_at_another_batch_is_reported_and_not_repaired(sound: Written) -> None:
    change_a_byte(
        sound, sound.path / "log-start-offset-checkpoint", len("0\n2\nflights 0 "), ord("0") ^ ord("5")
    )


@given(st.randoms(use_true_random=False))
def test_one_changed_byte_is_found_or_does_not_matter(whole: Written, choice: random.Random) -> None:
    shutil.rmtree(whole.path.with_name("changed"), ignore_errors=True)
    place = whole.path.with_name("changed") / "data"
    shutil.copytree(whole.path, place)
    files = sorted(f for f in place.rglob("*") if f.is_file() and f.name not in IDENTITY and f.stat().st_size)
    # Each kind of file as often as the others, and not by its size.
    kind = choice.choice(sorted({file.suffix or file.name for file in files}))
    file = choice.choice([file for file in files if (file.suffix or file.name) == kind])
    at, mask = choice.randrange(file.stat().st_size), choice.randrange(1, 256)
    note(f"{file.relative_to(place)} byte {at} xor {mask}")
    change_a_byte(Written(place, whole.batches), file, at, mask)


@pytest.mark.parametrize("where", ["in the batch before", "in the first batch", "after the first batch"])
def test_an_epoch_that_begins_elsewhere_is_a_fault_of_the_checkpoint(sound: Written, where: str) -> None:
    key = PARTITIONS[0]
    checkpoint = sound.path / str(key) / "leader-epoch-checkpoint"
    *others, latest = LeaderEpochs.decode(checkpoint.read_bytes())
    headers = [header for batch in sound.batches[key] for _, header in iterate_headers(batch)]
    first = next(header for header in headers if header.partition_leader_epoch == latest.epoch)
    start_offset = {
        "in the batch before": first.base_offset - 1,
        "in the first batch": first.base_offset + 1,
        "after the first batch": first.last_offset + 1,
    }[where]
    checkpoint.write_bytes(LeaderEpochs([*others, EpochEntry(latest.epoch, start_offset)]).encode())
    (finding,) = problems(sound.path)
    assert finding.check == "leader epochs"
    assert "leader-epoch-checkpoint" in finding.text
    repaired(sound.path)
    assert readable(sound.path) == sound.batches


def test_an_epoch_that_one_batch_has_is_restored_in_the_batch(sound: Written) -> None:
    key = PARTITIONS[0]
    segment = sorted((sound.path / str(key)).glob("*.log"))[0]
    with segment.open("r+b") as file:
        file.seek(12)
        file.write((9).to_bytes(4))
    (finding,) = problems(sound.path)
    assert "position 0: the leader epoch is not 3" in finding.text
    repaired(sound.path)
    assert readable(sound.path) == sound.batches


def test_a_segment_that_is_missing_is_found_and_accepted_only_by_a_repair(sound: Written) -> None:
    lost = sorted((sound.path / "flights-0").glob("*.log"))[1]
    lost.unlink()
    (finding,) = [finding for finding in problems(sound.path) if finding.check == "segments"]
    assert finding.state is State.FAIL
    assert lost.name in finding.text
    repaired(sound.path)
    assert not [finding for finding in problems(sound.path) if finding.check == "segments"]
    served = readable(sound.path)[PARTITIONS[0]]
    first = sound.batches[PARTITIONS[0]]
    assert served
    assert all(batch in first for batch in served)


def test_the_end_that_a_killed_broker_was_writing_is_only_a_warning(sound: Written) -> None:
    (sound.path / ".kafka_cleanshutdown").unlink()
    segment = sorted((sound.path / "flights-0").glob("*.log"))[-1]
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size - 3)
    found = {finding.check: finding for finding in problems(sound.path)}
    assert found["batches"].state is State.WARN
    assert "it was being written" in found["batches"].text


def test_a_replica_that_was_cut_is_marked_as_one_that_lost_records(sound: Written) -> None:
    segment = sorted((sound.path / "flights-0").glob("*.log"))[1]
    with segment.open("r+b") as file:
        file.seek(80)
        file.write(b"\xff\xff")
    lines = repaired(sound.path)
    assert any("cut at position 0" in line for line in lines)
    assert "tidelog.lost.tails=flights\\:0" in (sound.path / "meta.properties").read_text()
    copies = sound.path.with_name("copies")
    kept = {file.name for file in (copies / "flights-0").glob("*.log")}
    assert segment.name in kept
    removed = {name for name in kept if not (sound.path / "flights-0" / name).exists()}
    assert len(removed) >= 1, "later segments are removed, and their copies remain"


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_replica_whose_end_is_missing_is_marked_before_its_checkpoints_are_lowered(
    sound: Written, is_clean: bool
) -> None:
    """At its start, the broker compares the log with these checkpoints, and would find no loss any more."""
    if not is_clean:
        (sound.path / ".kafka_cleanshutdown").unlink()
    segment = sorted((sound.path / "flights-0").glob("*.log"))[-1]
    raw = segment.read_bytes()
    os.truncate(segment, [position for position, _ in iterate_headers(raw)][-1])
    repaired(sound.path)
    assert "tidelog.lost.tails=flights\\:0" in (sound.path / "meta.properties").read_text()


def test_a_replica_without_segments_is_marked_before_its_checkpoints_forget_it(sound: Written) -> None:
    for segment in (sound.path / "flights-0").glob("*.log"):
        segment.unlink()
    repaired(sound.path)
    assert "tidelog.lost.tails=flights\\:0" in (sound.path / "meta.properties").read_text()


def test_a_deleted_replica_is_not_marked(sound: Written) -> None:
    shutil.rmtree(sound.path / "flights-0")
    repaired(sound.path)
    assert "tidelog.lost.tails" not in (sound.path / "meta.properties").read_text()


def cut_in_the_middle(segment: Path) -> None:
    """Damages the second half of a segment file."""
    with segment.open("r+b") as file:
        file.seek(segment.stat().st_size // 2)
        file.write(b"\xff\xff")


def test_a_repair_that_fails_has_marked_what_it_cut(sound: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next repair finds sound logs, so it could not know that they were cut."""
    for key in PARTITIONS:
        cut_in_the_middle(sorted((sound.path / str(key)).glob("*.log"))[0])
    repair, count = directory_repair._repair_partition, 0

    def fail_at_the_second(*arguments: Any) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise OSError("no space left on device")
        repair(*arguments)

    monkeypatch.setattr(directory_repair, "_repair_partition", fail_at_the_second)
    with pytest.raises(OSError, match="no space"):
        repaired(sound.path)
    properties = (sound.path / "meta.properties").read_text()
    assert "flights\\:0" in properties
    assert "flights\\:1" in properties


def test_a_repair_needs_the_file_in_which_it_marks_replicas(sound: Written) -> None:
    segment = sorted((sound.path / "flights-0").glob("*.log"))[0]
    cut_in_the_middle(segment)
    before = segment.read_bytes()
    (sound.path / "meta.properties").write_bytes(b"\xff\xfe")
    with pytest.raises(RepairError, match="restore it first"):
        repaired(sound.path)
    assert segment.read_bytes() == before


def test_rebuilt_epochs_are_those_of_all_segments(sound: Written) -> None:
    """Recovery notes the epochs of the segments that it reads, which must not count as all epochs."""
    partition = sound.path / "flights-0"
    truth = (partition / "leader-epoch-checkpoint").read_bytes()
    (partition / "leader-epoch-checkpoint").unlink()
    sorted(partition.glob("*.index"))[1].unlink()
    directory = LogDirectory.open(sound.path, cluster_id=CLUSTER, node_id=NODE)
    try:
        log = OwnedLog(directory.open_partition(PARTITIONS[0], TOPIC_ID, CONFIG, now_ms=NOW_MS))
        assert log.leader_epochs.encode() == truth
    finally:
        directory.abandon()


def test_the_epoch_of_a_batch_that_was_not_flushed_is_right(sound: Written) -> None:
    """A machine that crashed had appended a batch of a new leader, and had not written its checkpoint."""
    (sound.path / ".kafka_cleanshutdown").unlink()
    points = sound.path / "recovery-point-offset-checkpoint"
    write_offsets(points, {key: offset // 2 for key, offset in read_offsets(points).items()})
    segment = sorted((sound.path / "flights-1").glob("*.log"))[-1]
    raw = bytearray(segment.read_bytes())
    last = [position for position, _ in iterate_headers(bytes(raw))][-1]
    struct.pack_into(">i", raw, last + 12, 18)
    segment.write_bytes(raw)
    assert [found for found in problems(sound.path) if found.state is State.FAIL] == []
    repaired(sound.path)
    assert segment.read_bytes() == raw


def test_a_repair_raises_no_recovery_points_after_an_unclean_stop(sound: Written) -> None:
    """The broker must check again what was not flushed."""
    (sound.path / ".kafka_cleanshutdown").unlink()
    points = sound.path / "recovery-point-offset-checkpoint"
    lowered = {key: offset // 2 for key, offset in read_offsets(points).items()}
    write_offsets(points, {**lowered, TopicPartition("deleted", 0): 5})
    repaired(sound.path)
    assert read_offsets(points) == lowered


def test_other_logs_in_a_data_directory_hide_nothing(sound: Written) -> None:
    (sound.path / "server.log").write_text("started")
    cut_in_the_middle(sorted((sound.path / "flights-0").glob("*.log"))[0])
    assert State.FAIL in {finding.state for finding in problems(sound.path)}


def test_a_repair_by_another_user_is_refused(sound: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker could not open the files that it creates."""
    monkeypatch.setattr(os, "geteuid", lambda: sound.path.stat().st_uid + 1)
    done = doctor(sound.path, "--repair")
    assert (done.exit_code, "repair it as that user" in done.stderr) == (3, True)


def test_one_partition_can_be_examined_alone(sound: Written) -> None:
    assert problems(sound.path / "flights-0") == []
    index = sorted((sound.path / "flights-0").glob("*.index"))[0]
    index.unlink()
    (finding,) = problems(sound.path / "flights-0")
    assert (finding.state, finding.check) == (State.WARN, "offset indexes")


def test_copies_never_overwrite_older_copies(sound: Written) -> None:
    Copies(sound.path, sound.path.with_name("copies"))
    with pytest.raises(RepairError, match="File exists"):
        Copies(sound.path, sound.path.with_name("copies"))


def doctor(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["doctor", *map(str, arguments)])


def test_the_command_examines_and_repairs(sound: Written) -> None:
    done = doctor(sound.path)
    assert (done.exit_code, "sound" in done.stdout) == (0, True)
    index = sorted((sound.path / "flights-0").glob("*.index"))[0]
    index.write_bytes(b"\1" * 8)
    before = {file: file.read_bytes() for file in sound.path.rglob("*") if file.is_file()}
    done = doctor(sound.path, "--format", "json")
    assert (done.exit_code, json.loads(done.stdout)["exit_code"]) == (2, 2)
    assert {file: file.read_bytes() for file in sound.path.rglob("*") if file.is_file()} == before
    copies = sound.path.with_name("kept")
    done = doctor(sound.path, "--repair", "--copies", copies)
    assert done.exit_code == 0, done.output
    assert str(copies) in done.stderr
    assert (copies / "flights-0" / index.name).read_bytes() == b"\1" * 8


def test_a_directory_in_use_and_other_directories_are_refused(sound: Written, tmp_path: Path) -> None:
    lock = DirectoryLock(sound.path)
    try:
        done = doctor(sound.path)
    finally:
        lock.release()
    assert (done.exit_code, "stop the broker first" in done.stderr) == (3, True)
    (tmp_path / "empty").mkdir()
    assert doctor(tmp_path / "empty").exit_code == 3
    assert doctor(tmp_path / "none").exit_code == 3
    assert doctor("--repair").exit_code == 3
    alone = doctor(sound.path / "flights-0", "--repair")
    assert (alone.exit_code, f"tidelog doctor {sound.path} --repair" in alone.stderr) == (3, True)
    assert doctor(sound.path, "--etcd", "e:1").exit_code == 3
