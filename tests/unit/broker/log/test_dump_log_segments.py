"""Apache Kafka's DumpLogSegments accepts our files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from brokerlab.kafka_jars import JavaTools
from brokerlab.logs import append, files, kill, make_batch, open_log
from tidelog.broker.log.log_config import LogConfig

pytestmark = pytest.mark.java

RECORDS = 1200


@pytest.fixture(scope="module", params=["closed", "killed", "recovered"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several segments of batches in all codecs, with producers: after a clean stop, after SIGKILL, and after
    recovery from it.
    """
    directory = tmp_path_factory.mktemp(request.param) / "t-0"
    config = LogConfig(segment_bytes=40_000, index_interval_bytes=512)
    log = open_log(directory, config)
    log.leader_epochs.assign(0, 0)
    log.persist_leader_epochs()
    sequence = 0
    while log.log_end_offset < RECORDS:
        count = 1 + log.log_end_offset % 7
        append(
            log,
            make_batch(
                log.log_end_offset,
                count,
                value_bytes=log.log_end_offset % 300,
                timestamps=[1_700_000_000_000 + log.log_end_offset + 37 * n % 5 for n in range(count)],
                compression=log.log_end_offset % 5,
                producer_id=4000,
                producer_epoch=1,
                base_sequence=sequence,
            ),
        )
        sequence += count
    if request.param == "closed":
        log.close()
    else:
        kill(log)
    if request.param == "recovered":
        newest = files(directory, ".log")[-1]
        newest.write_bytes(newest.read_bytes()[:-3])
        open_log(directory, config).close()
    return directory


def dump(java: JavaTools, *arguments: str) -> str:
    done = java.run("DumpLogSegments", *arguments)
    output = done.stdout + done.stderr  # the tool reports errors there
    assert done.returncode == 0, output
    # With deep iteration, the tool prints this for each later segment, also for Apache Kafka's own logs.
    output = re.sub(r"Non-consecutive offsets in \S+\n(  -1 is followed by \d+\n)+", "", output)
    for complaint in (
        "Found timestamp mismatch",
        "Mismatches in",
        "Non-consecutive",
        "out of order",
        "not found",
        "Index timestamp",
    ):
        assert complaint not in output, output[output.find(complaint) - 300 :][:900]
    return output


def test_logs_with_deep_iteration(java: JavaTools, written: Path) -> None:
    logs = files(written, ".log")
    assert len(logs) > 2
    output = dump(java, "--deep-iteration", "--print-data-log", "--files", ",".join(map(str, logs)))
    offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+) ", output, re.MULTILINE)]
    assert offsets == list(range(len(offsets)))
    assert len(offsets) > RECORDS - 10
    assert "isvalid: false" not in output
    sizes = [int(size) for size in re.findall(r" size: (\d+) ", output)]
    assert sum(sizes) == sum(path.stat().st_size for path in logs), "there are bytes after the last batch"


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("check", [[], ["--verify-index-only"], ["--index-sanity-check"]])
def test_indexes(java: JavaTools, written: Path, suffix: str, check: list[str]) -> None:
    indexes = files(written, suffix)
    output = dump(java, *check, "--files", ",".join(map(str, indexes)))
    if check:
        return
    found = re.findall(r"^(?:offset|timestamp): \d+ ", output, re.MULTILINE)
    expected = sum(path.stat().st_size for path in indexes) // (8 if suffix == ".index" else 12)
    assert len(found) >= expected > 0


def test_producer_snapshots(java: JavaTools, written: Path) -> None:
    snapshots = files(written, ".snapshot")
    assert snapshots
    output = dump(java, "--files", ",".join(map(str, snapshots)))
    assert output.count("producerId: 4000 producerEpoch: 1") >= len(snapshots)


def test_the_tool_reports_wrong_index_entries(java: JavaTools, written: Path, tmp_path: Path) -> None:
    """The checks above find errors in files whose index entries are off by one batch."""
    copies = []
    for suffix in (".log", ".index", ".timeindex"):
        source = files(written, suffix)[0]
        content = bytearray(source.read_bytes())
        if suffix != ".log":
            content[7 if suffix == ".index" else 11] ^= 1
        copies.append(tmp_path / source.name)
        copies[-1].write_bytes(content)
    for index in copies[1:]:
        with pytest.raises(AssertionError):
            dump(java, "--files", str(index))
