"""`tidelog dev`: its banner, several brokers, topics, temporary data, and its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from brokerlab.broker_process import READY_LINE, tidelog_command
from clusterlab.processes import PortRange

pytestmark = pytest.mark.integration

START_S = 60.0
STOP_S = 30.0


class Dev:
    """A `tidelog dev` with its output."""

    def __init__(self, directory: Path, *options: str, temporary: Path | None = None) -> None:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if temporary is not None:
            environment["TMPDIR"] = str(temporary)
        self._output = directory / f"output-{time.monotonic_ns()}"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [*tidelog_command(), "dev", *options],
                cwd=directory,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    @property
    def text(self) -> str:
        return self._output.read_text()

    @property
    def addresses(self) -> str:
        """The line of addresses, once the cluster is ready."""
        limit_s = time.monotonic() + START_S
        while (found := READY_LINE.search(self.text)) is None or "try:" not in self.text:
            assert self.process.poll() is None, self.text
            assert time.monotonic() < limit_s, self.text
            time.sleep(0.02)
        return found.group().removeprefix("ready: ").strip()

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(STOP_S)


@contextmanager
def running(directory: Path, *options: str, temporary: Path | None = None) -> Iterator[Dev]:
    dev = Dev(directory, *options, temporary=temporary)
    try:
        yield dev
    finally:
        if dev.process.poll() is None:
            dev.process.kill()
            dev.process.wait()


def replicas_of(addresses: str, topic: str) -> dict[int, int]:
    """Returns the number of replicas of each partition."""
    found = AdminClient({"bootstrap.servers": addresses}).list_topics(topic, timeout=30).topics[topic]
    return {index: len(partition.replicas) for index, partition in found.partitions.items()}


def test_three_lines_say_what_to_do_and_one_that_it_stopped(tmp_path: Path) -> None:
    with running(tmp_path, "--listen", "127.0.0.1:0", "--topic", "flights:6") as dev:
        address = dev.addresses
        assert replicas_of(address, "flights") == dict.fromkeys(range(6), 1)
        assert dev.end() == 0
        assert dev.text.splitlines() == [
            f"ready: {address}",
            "data:  data",
            f"try:   echo hello | tidelog produce flights --bootstrap-server {address}",
            "stopped",
        ]


def test_a_cluster_in_one_process_keeps_its_data(tmp_path: Path) -> None:
    ports = PortRange()
    port = ports.base
    options = ("--listen", f"127.0.0.1:{port}")
    with running(tmp_path, *options, "--brokers", "3", "--topic", "flights") as dev:
        assert dev.addresses == ",".join(f"127.0.0.1:{port + number}" for number in range(3))
        assert replicas_of(dev.addresses, "flights") == {0: 3}
        producer = Producer({"bootstrap.servers": dev.addresses, "acks": "all"})
        producer.produce("flights", b"EWR-IAH")
        assert producer.flush(30) == 0
        assert dev.end(signal.SIGTERM) == 0
        assert len(dev.text.splitlines()) == 4, dev.text
    with running(tmp_path, *options, "--topic", "flights") as dev:  # the directory states how many
        assert dev.addresses.count(",") == 2
        command = ["consume", "flights", "--from-beginning", "--max-messages", "1"]
        tool = [*tidelog_command(), *command, "--bootstrap-server", dev.addresses]
        read = subprocess.run(tool, capture_output=True, text=True, timeout=60, check=True)
        assert read.stdout == "EWR-IAH\n"
        dev.process.kill()
        dev.process.wait()
    with running(tmp_path, *options, "--brokers", "2") as dev:
        assert dev.process.wait(START_S) == 1
        assert "--brokers 2: data contains the data of 3" in dev.text
    ports.release()


def test_ephemeral_data_is_gone_at_the_end(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with running(tmp_path, "--listen", "127.0.0.1:0", "--ephemeral", temporary=temporary) as dev:
        assert dev.addresses
        assert [path.name.startswith("tidelog-dev-") for path in temporary.iterdir()] == [True]
        assert "data:  a temporary directory" in dev.text
        assert dev.end() == 0
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--topic", "flights:0"), "--topic flights:0: expected NAME or NAME:PARTITIONS"),
        (("--topic", "a/b"), "topic a/b: "),
        (("--ephemeral", "--data-dir", "data"), "--ephemeral: it does not keep data"),
        (("--brokers", "3", "--secure"), "--secure: it is for one broker"),
        (("--brokers", "3", "--set", "log.dirs=other"), "log.dirs: it cannot be set for several brokers"),
        (("--brokers", "3", "--listen", "here"), "--listen here: expected HOST:PORT"),
    ],
)
def test_a_wrong_option_is_one_line(tmp_path: Path, options: tuple[str, ...], reason: str) -> None:
    listen = () if "--listen" in options else ("--listen", "127.0.0.1:0")
    with running(tmp_path, *listen, *options) as dev:
        assert dev.process.wait(START_S) == 1
        assert dev.text.startswith(f"tidelog: {reason}"), dev.text
        assert len(dev.text.splitlines()) == 1


def test_the_version_names_the_commit_and_the_kind_of_the_build() -> None:
    command = [*tidelog_command(), "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert re.fullmatch(
        r"tidelog \d+\.\d+\.\d+, commit (unknown|[0-9a-f]{12}(-dirty)?), (compiled|pure Python)\n", printed
    )


def test_a_stop_succeeds_although_nobody_reads_the_output(tmp_path: Path) -> None:
    command = [*tidelog_command(), "dev", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stderr is not None
        while not (line := process.stdout.readline()).startswith(b"try:"):
            assert line, process.stderr.read()
        process.stdout.close()
        process.terminate()
        assert process.wait(STOP_S) == 0, process.stderr.read()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.communicate()


def test_the_console_is_served_beside_the_brokers(tmp_path: Path) -> None:
    with running(tmp_path, "--listen", "127.0.0.1:0", "--ephemeral", "--console", "127.0.0.1:0") as dev:
        limit_s = time.monotonic() + START_S
        while (found := re.search(r"^console: (\S+)$", dev.text, re.MULTILINE)) is None:
            assert dev.process.poll() is None, dev.text
            assert time.monotonic() < limit_s, dev.text
            time.sleep(0.02)
        with urllib.request.urlopen(f"{found[1]}topics", timeout=START_S) as answer:
            assert answer.status == 200
        assert dev.end() == 0
    assert "Traceback" not in dev.text


def test_the_console_of_dev_serves_this_machine_only(tmp_path: Path) -> None:
    with running(tmp_path, "--listen", "127.0.0.1:0", "--ephemeral", "--console", "0.0.0.0:0") as dev:
        assert dev.process.wait(START_S) == 1
    assert "--console 0.0.0.0:0: it serves this machine only; 'tidelog console --login' serves" in dev.text


def test_a_wrong_address_of_the_console_is_one_sentence(tmp_path: Path) -> None:
    with running(tmp_path, "--listen", "127.0.0.1:0", "--ephemeral", "--console", "here") as dev:
        assert dev.process.wait(START_S) == 1
    assert "tidelog: --console here: here is not an address: expected HOST:PORT, as in 127" in dev.text
    assert "Traceback" not in dev.text


def test_ipv6_addresses_have_brackets(tmp_path: Path) -> None:
    """Clients and the console accept the address that `ready:` prints."""
    with running(tmp_path, "--ephemeral", "--listen", "[::1]:0", "--console", "[::1]:0") as dev:
        assert re.fullmatch(r"\[::1\]:[0-9]+", dev.addresses)
        with subprocess.Popen(
            [*tidelog_command(), "topic", "create", "t", "--bootstrap-server", dev.addresses]
        ) as create:
            assert create.wait(START_S) == 0
        (url,) = re.findall(r"^console: (.*)$", dev.text, re.MULTILINE)
        with urllib.request.urlopen(url, timeout=START_S) as page:
            assert page.status == 200
