"""Standard output that can't be written, as real processes have it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from brokerlab.broker_process import tidelog_command

COMMANDS = pytest.mark.parametrize(
    "arguments",
    [("--version",), ("topic", "--help"), ("acl", "list", "--help"), ("dump-log", "checkpoint")],
    ids=" ".join,
)


def run(tmp_path: Path, arguments: tuple[str, ...], output: int) -> subprocess.CompletedProcess[bytes]:
    (tmp_path / "checkpoint").mkdir(exist_ok=True)
    (tmp_path / "checkpoint" / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    named = tuple("checkpoint/leader-epoch-checkpoint" if a == "checkpoint" else a for a in arguments)
    return subprocess.run(
        [*tidelog_command(), *named],
        stdout=output,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )


@COMMANDS
def test_a_full_disk_is_one_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = run(tmp_path, arguments, full.fileno())
    assert ended.stderr == b"tidelog: standard output can't be written: No space left on device\n"
    assert ended.returncode == 1


@COMMANDS
def test_a_pipe_that_nobody_reads_ends_the_command_silently(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = run(tmp_path, arguments, writing)
    finally:
        os.close(writing)
    assert ended.stderr == b""
    assert ended.returncode == 1
