"""Ctrl-C and SIGTERM while commands work, as real processes.

A command ends soon, without a traceback, and with the exit code of a shell. A command that is meant to be
ended in this way, such as `consume`, ends with success.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import termios
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from brokerlab.broker_process import BrokerProcess, tidelog_command
from brokerlab.command_line import InProcessTools

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LIMIT_S = 60.0
END_LIMIT_S = 20.0
"""Far more than the two seconds that a command may take, because tests share their machine."""
INTERRUPTED = {signal.SIGINT: (130, "tidelog: interrupted\n"), signal.SIGTERM: (143, "tidelog: terminated\n")}
SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda each: each.name)


@pytest.fixture
def tools(bootstrap: str) -> InProcessTools:
    return InProcessTools(bootstrap)


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A listener of which the test accepts connections, and which never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LIMIT_S)
        yield listener


@pytest.fixture
def start(bootstrap: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start_one(*arguments: object, server: str = bootstrap, **variables: str) -> subprocess.Popen[bytes]:
        # Background jobs of a shell ignore SIGINT, and processes inherit that.
        process = subprocess.Popen(
            ["env", "--default-signal=INT", *tidelog_command(), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TIDELOG_BOOTSTRAP_SERVER": server, **variables},
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[bytes], number: signal.Signals) -> tuple[int, str, str]:
    """Sends the signal, and returns the exit code and both outputs."""
    process.send_signal(number)
    output, errors = process.communicate(timeout=END_LIMIT_S)
    return process.returncode, output.decode(), errors.decode()


def until(holds: Callable[[], bool]) -> None:
    limit_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < limit_s
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        (["topic", "list", "--format", "json"], signal.SIGINT),
        (["topic", "list"], signal.SIGTERM),
        (["consume", "t", "--group", "g"], signal.SIGINT),
        (["produce", "t"], signal.SIGTERM),
        (["perf", "produce", "t"], signal.SIGINT),
        (["top", "--once"], signal.SIGINT),
        (["doctor"], signal.SIGINT),
        (["delete-records", "t", "--partition", "0", "--offset", "1"], signal.SIGINT),
        (["transactions", "find-hanging"], signal.SIGINT),
        (["elect-leaders", "--election-type", "preferred", "--all-topic-partitions"], signal.SIGINT),
        (["reassign", "--list"], signal.SIGTERM),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value.name,
)
def test_a_command_that_waits_for_a_silent_broker(
    start: Callable[..., subprocess.Popen[bytes]],
    silent: socket.socket,
    arguments: Sequence[str],
    number: signal.Signals,
) -> None:
    process = start(*arguments, server=f"127.0.0.1:{silent.getsockname()[1]}")
    connection, _ = silent.accept()
    with connection:
        exit_code, output, errors = ended(process, number)
    assert (exit_code, errors) == INTERRUPTED[number]
    assert output == ""


@SIGNALS
def test_a_shell_that_waits_for_completions(
    start: Callable[..., subprocess.Popen[bytes]], silent: socket.socket, number: signal.Signals
) -> None:
    process = start(
        server=f"127.0.0.1:{silent.getsockname()[1]}",
        COMP_WORDS="tidelog topic describe fl",
        COMP_CWORD="3",
        _TIDELOG_COMPLETE="bash_complete",
    )
    connection, _ = silent.accept()
    with connection:
        assert ended(process, number) == (INTERRUPTED[number][0], "", "")


@SIGNALS
def test_watching_ends_with_success(
    start: Callable[..., subprocess.Popen[bytes]], topic: str, number: signal.Signals
) -> None:
    process = start("topic", "list", "--watch", 60)
    assert process.stdout is not None
    while process.stdout.readline().decode().strip() != topic:
        pass
    exit_code, _, errors = ended(process, number)
    assert (exit_code, errors) == (0, "")


@SIGNALS
def test_a_member_of_a_group_commits_and_leaves(
    start: Callable[..., subprocess.Popen[bytes]], tools: InProcessTools, topic: str, number: signal.Signals
) -> None:
    group = f"interrupted-{uuid.uuid4().hex[:10]}"
    assert start("produce", topic).communicate(b"a\nb\nc\n")[1] == f"3 records sent to {topic}.\n".encode()
    process = start("consume", topic, "--group", group, "--from-beginning")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == [b"a\n", b"b\n", b"c\n"]
    assert ended(process, number) == (0, "", f"3 records read from {topic}.\n")
    (described,) = json.loads(tools.output("group", "describe", group, "--format", "json"))
    assert (described["state"], described["member_count"]) == ("Empty", 0)
    assert [row["committed"] for row in described["partitions"]] == [3]


def test_a_member_whose_topic_was_deleted_ends(
    start: Callable[..., subprocess.Popen[bytes]], tools: InProcessTools, topic: str
) -> None:
    """The commit was repeated for a minute."""
    start("produce", topic).communicate(b"a\n")
    process = start("consume", topic, "--group", f"g-{topic}", "--from-beginning")
    assert process.stdout is not None
    assert process.stdout.readline() == b"a\n"
    tools.output("topic", "delete", topic)
    assert ended(process, signal.SIGINT) == (
        0,
        "",
        f"Topic {topic} was deleted, so no offsets were committed.\n1 record read from {topic}.\n",
    )


@pytest.mark.parametrize(
    "options", [(), ("--group", "readers-of-a-deleted-topic")], ids=["alone", "in-a-group"]
)
def test_a_command_whose_topic_is_deleted_ends_itself(
    start: Callable[..., subprocess.Popen[bytes]],
    tools: InProcessTools,
    topic: str,
    options: Sequence[str],
) -> None:
    """Kafka's console consumer waits for a topic of the same name, and warns again and again."""
    start("produce", topic).communicate(b"a\n")
    process = start("consume", topic, *options, "--from-beginning")
    assert process.stdout is not None
    assert process.stdout.readline() == b"a\n"
    tools.output("topic", "delete", topic)
    output, errors = process.communicate(timeout=LIMIT_S)
    reason = f"tidelog: topic '{topic}' does not exist; 'tidelog topic list' shows the existing topics\n"
    uncommitted = f"Topic {topic} was deleted, so no offsets were committed.\n" if options else ""
    assert (process.returncode, output, errors.decode()) == (1, b"", uncommitted + reason)


def test_a_second_ctrl_c_ends_a_member_whose_broker_does_not_answer(
    start: Callable[..., subprocess.Popen[bytes]], own_broker: BrokerProcess
) -> None:
    server = own_broker.bootstrap
    start("produce", "t", server=server).communicate(b"a\n")
    process = start("consume", "t", "--group", "g", "--from-beginning", server=server)
    assert process.stdout is not None
    assert process.stdout.readline() == b"a\n"
    os.kill(own_broker.pid, signal.SIGSTOP)
    try:
        process.send_signal(signal.SIGINT)
        time.sleep(1)  # so that the first one is noted
        exit_code, _, errors = ended(process, signal.SIGINT)
    finally:
        os.kill(own_broker.pid, signal.SIGCONT)
    assert exit_code == 130
    assert errors.splitlines()[-2:] == [
        "1 record was printed, but the offsets of these partitions were not committed: t-0.",
        "tidelog: interrupted",
    ]


@SIGNALS
def test_what_was_measured_until_then_is_printed(
    start: Callable[..., subprocess.Popen[bytes]], tools: InProcessTools, topic: str, number: signal.Signals
) -> None:
    sending = start(
        *("perf", "produce", topic, "--num-records", 10**9, "--record-size", 100),
        *("--throughput", 10_000, "--format", "json"),
    )
    until(lambda: int(tools.rows("offsets", topic)[1][3]) >= 10_000)
    exit_code, output, errors = ended(sending, number)
    assert (exit_code, errors.splitlines()[-1]) == (INTERRUPTED[number][0], INTERRUPTED[number][1].strip())
    assert "never retrieved" not in errors
    (rates,) = json.loads(output)["rates"]
    assert 0 < rates["records"] <= int(tools.rows("offsets", topic)[1][3])


@SIGNALS
def test_records_of_lines_are_sent_before_the_end(
    start: Callable[..., subprocess.Popen[bytes]], tools: InProcessTools, topic: str, number: signal.Signals
) -> None:
    process = start("produce", topic)
    assert process.stdin is not None
    process.stdin.write(b"a\nb\n")
    process.stdin.flush()
    until(lambda: tools.rows("offsets", topic)[1][3] == "2")
    assert ended(process, number) == (0, "", f"2 records sent to {topic}.\n")


@SIGNALS
def test_the_live_view_restores_the_terminal(bootstrap: str, number: signal.Signals) -> None:
    """In the live view, Ctrl-C is a key, and only SIGTERM is a signal."""
    pytest.importorskip("textual")
    outer, inner = pty.openpty()
    try:
        before = termios.tcgetattr(inner)
        process = subprocess.Popen(
            [*tidelog_command(), "top"],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**os.environ, "TIDELOG_BOOTSTRAP_SERVER": bootstrap, "TERM": "xterm"},
            start_new_session=True,
        )
        try:
            read_until(outer, rb"\d broker")
            if number == signal.SIGINT:
                os.write(outer, b"\x03")
            else:
                process.send_signal(number)
            text = read_until(outer, rb"\x1b\[\?1049l")
            assert process.wait(END_LIMIT_S) == (0 if number == signal.SIGINT else 143), text
        finally:
            process.kill()
            process.wait()
        assert termios.tcgetattr(inner) == before
    finally:
        os.close(outer)
        os.close(inner)


def read_until(terminal: int, pattern: bytes) -> bytes:
    text = b""
    limit_s = time.monotonic() + LIMIT_S
    while not re.search(pattern, text):
        assert time.monotonic() < limit_s, text
        if select.select([terminal], [], [], 0.1)[0]:
            text += os.read(terminal, 65536)
    return text


@SIGNALS
def test_a_temporary_directory_is_deleted_while_brokers_start(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, number: signal.Signals
) -> None:
    process = start("dev", "--ephemeral", "--listen", "127.0.0.1:0", TMPDIR=str(tmp_path))
    until(lambda: any(tmp_path.glob("tidelog-dev-*")))
    exit_code, _, errors = ended(process, number)
    assert exit_code in (0, INTERRUPTED[number][0])
    assert "Traceback" not in errors
    assert not list(tmp_path.iterdir())
