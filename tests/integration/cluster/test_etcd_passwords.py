"""A cluster whose services have users and passwords in etcd, as in the chart."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from brokerlab.broker_process import free_port, tidelog_command
from brokerlab.command_line import Tools
from brokerlab.etcd_process import EtcdProcess
from tidelog.cli.services.etcd import etcd_role
from tidelog.rpc.peer_tls import ServiceRole

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]
START_TIMEOUT_S = 60.0
PASSWORDS = {kind: f"password of {kind.value}" for kind in ServiceRole}


@contextmanager
def _process(log_path: Path, environment: Mapping[str, str], *arguments: str) -> Iterator[None]:
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [*tidelog_command(), *arguments],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _etcd(arguments: list[str], endpoint: str) -> str:
    done = subprocess.run(
        [*tidelog_command(), "etcd", *arguments, "--set", f"tidelog.etcd.endpoints={endpoint}"],
        env={**os.environ, "TIDELOG_ETCD_USERNAME": "root", "TIDELOG_ETCD_PASSWORD": "password of root"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_services_with_a_user_each_serve_clients(tmp_path: Path) -> None:
    """Topics and groups need all three kinds of services."""
    passwords = tmp_path / "passwords"
    passwords.mkdir()
    for kind, password in PASSWORDS.items():
        (passwords / kind.value).write_text(f"{password}\n")
    etcd = EtcdProcess(tmp_path / "etcd", tmp_path / "etcd.log").start()
    port = free_port()

    def service(kind: ServiceRole, *settings: str) -> AbstractContextManager[None]:
        arguments = [kind.value, "--set", f"tidelog.etcd.endpoints={etcd.endpoint}"]
        for setting in ("tidelog.rpc.listener=127.0.0.1:0", "offsets.topic.replication.factor=1", *settings):
            arguments += ["--set", setting]
        environment = {
            "TIDELOG_ETCD_USERNAME": etcd_role(kind).name,
            "TIDELOG_ETCD_PASSWORD": PASSWORDS[kind],
        }
        return _process(tmp_path / f"{kind.value}.log", environment, *arguments)

    tools = Tools(f"127.0.0.1:{port}")
    try:
        require = ["require-password", "--service-passwords", str(passwords)]
        _etcd([*require, "--only-create"], etcd.endpoint)
        listener = f"PLAINTEXT://127.0.0.1:{port}"
        with (
            service(
                ServiceRole.BROKER,
                *("node.id=1", f"listeners={listener}", f"log.dirs={tmp_path / 'log'}"),
            ),
            service(ServiceRole.CONTROLLER, "node.id=1"),
            service(ServiceRole.GROUP_COORDINATOR, "node.id=1"),
        ):
            deadline_s = time.monotonic() + START_TIMEOUT_S
            while (created := tools.run("topic", "create", "before")).returncode:
                assert time.monotonic() < deadline_s, created.stderr.decode()
                time.sleep(0.2)
            # From now on, etcd requires the users, while the services run.
            assert "requires the password" in _etcd(require, etcd.endpoint)
            tools.output("topic", "create", "after", "--partitions", "2")
            for topic in ("before", "after"):
                tools.output("produce", topic, stdin=b"one\ntwo\n")
                read = tools.output(
                    "consume", topic, "--group", "g", "--from-beginning", "--max-messages", "2"
                )
                assert sorted(read.splitlines()) == ["one", "two"]
            assert "after" in tools.output("group", "describe", "g")
        logs = "".join((tmp_path / f"{kind.value}.log").read_text() for kind in ServiceRole)
        assert "etcd rejects" not in logs, logs
    finally:
        etcd.stop()
