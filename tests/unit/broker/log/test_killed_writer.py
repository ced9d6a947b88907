"""All batches that a process acknowledged before SIGKILL are in the log, and no batch is torn."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tidelog
from brokerlab.logs import kill, open_log, read_all
from tidelog.broker.log.log_config import LogConfig
from tidelog.records.batch import parse_header

# The writer imports the package that this process tests, whatever is installed.
PACKAGE_ROOT = str(Path(tidelog.__file__).parents[1])
TESTS = str(Path(__file__).resolve().parents[3])
ROUNDS = 8
WRITER = """
import sys
from pathlib import Path
from brokerlab.logs import append, make_batch
from brokerlab.logs import open_log
from tidelog.broker.log.log_config import LogConfig

log = open_log(Path(sys.argv[1]), LogConfig(segment_bytes=200_000, index_interval_bytes=500))
while True:
    offset = log.log_end_offset
    producer = {"producer_id": 9, "producer_epoch": 0, "base_sequence": offset}
    append(log, make_batch(offset, 1 + offset % 5, value_bytes=offset * 37 % 3000, **producer))
    if offset % 400 == 0:
        log.flush()
    print(log.log_end_offset, flush=True)
"""


@pytest.mark.integration
def test_acknowledged_batches_survive_sigkill(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    source = random.Random(7)
    acknowledged = 0
    for _ in range(ROUNDS):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory)],
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": os.pathsep.join([PACKAGE_ROOT, TESTS])},
        ) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline()]
            deadline = time.monotonic() + source.uniform(0.01, 0.3)
            while time.monotonic() < deadline:
                lines.append(writer.stdout.readline())
            writer.kill()
            lines += writer.stdout.read().split("\n")
        seen = [int(line) for line in lines if line.strip()]
        assert seen[0] > acknowledged, "the writer continues where the last one ended"
        acknowledged = seen[-1]
        log = open_log(directory, LogConfig(segment_bytes=200_000, index_interval_bytes=500))
        assert log.log_end_offset >= acknowledged
        offset = 0
        for batch in read_all(log):
            header = parse_header(batch)
            assert header.base_offset == offset
            assert header.last_offset_delta == offset % 5
            offset = header.last_offset + 1
        assert offset == log.log_end_offset
        assert log.producer_state.stored_batches(9)[-1].last_offset == offset - 1
        kill(log)
