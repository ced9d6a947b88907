"""A real etcd with one member or several: start, stop, kill, freeze, start again."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import grpc.aio

from brokerlab.broker_process import free_port
from tidelog.cli.local_cluster.processes import EtcdBinary, find_etcd
from tidelog.metadata.etcd.generated import rpc_pb2, rpc_pb2_grpc

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
LOG_TAIL_BYTES = 20_000
STOPPED = "T"


class EtcdStartError(RuntimeError):
    """etcd ended, or no client could connect in time. The message contains its output."""


class EtcdProcess:
    """One member, alone or of an `etcd_cluster`, which keeps its ports and its directory over restarts.

    `arguments` are additional flags of etcd. With `tls` (files of CA, certificate, key), clients must present
    a certificate of that CA.
    """

    def __init__(
        self,
        data_dir: Path,
        log_path: Path,
        *,
        binary: EtcdBinary | None = None,
        name: str = "etcd-1",
        client_port: int | None = None,
        peer_port: int | None = None,
        arguments: Sequence[str] = (),
        tls: tuple[Path, Path, Path] | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.log_path = log_path
        self.binary = binary or find_etcd()
        self.name = name
        self.client_port = client_port or free_port()
        self.peer_port = peer_port or free_port()
        self.arguments = list(arguments)
        self.tls = tls
        self.process: subprocess.Popen[bytes] | None = None
        self.members: list[EtcdProcess] = [self]

    @property
    def endpoint(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.client_port}"

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Returns the endpoints of the whole cluster, with this member's first."""
        return (self.endpoint, *(member.endpoint for member in self.members if member is not self))

    async def compact(self, revision: int) -> None:
        """Compacts the history before `revision`, for all users of this etcd. Clients must not need TLS."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.client_port}") as channel:
            request = rpc_pb2.CompactionRequest(revision=revision, physical=True)
            await rpc_pb2_grpc.KVStub(channel).Compact(request, timeout=START_TIMEOUT_S)

    @property
    def peer_url(self) -> str:
        return f"http://127.0.0.1:{self.peer_port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "etcd was never started"
        return self.process.pid

    def command(self) -> list[str]:
        command = [
            str(self.binary.path),
            f"--name={self.name}",
            f"--data-dir={self.data_dir}",
            f"--listen-client-urls={self.endpoint}",
            f"--advertise-client-urls={self.endpoint}",
            f"--listen-peer-urls={self.peer_url}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            f"--initial-cluster={','.join(f'{m.name}={m.peer_url}' for m in self.members)}",
            "--logger=zap",
            "--log-level=warn",
        ]
        if self.tls:
            ca, certificate, key = self.tls
            command += [f"--trusted-ca-file={ca}", f"--cert-file={certificate}", f"--key-file={key}"]
            command += ["--client-cert-auth"]
        return command + self.arguments

    def spawn(self) -> None:
        """Starts the process without waiting."""
        assert not self.is_running(), "etcd already runs"
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def start(self, timeout_s: float = START_TIMEOUT_S) -> EtcdProcess:
        self.spawn()
        self.wait_until_up(timeout_s)
        return self

    def wait_until_up(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits until the client port is open. etcd opens it after it has joined its cluster."""
        deadline = time.monotonic() + timeout_s
        while not _is_listening(self.client_port):
            if self.process is None or self.process.poll() is not None:
                raise EtcdStartError(f"etcd ended:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise EtcdStartError(f"etcd wasn't up within {timeout_s} s:\n{self.log_tail()}")
            time.sleep(0.02)

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Sends SIGTERM and waits, then sends SIGKILL if it takes too long."""
        if self.process is None or not self.is_running():
            return
        self.resume()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Sends SIGKILL and waits."""
        if self.process is not None and self.is_running():
            self.process.kill()
            self.process.wait()

    def pause(self) -> None:
        """Freezes the process. It returns when every thread has stopped, which may be after the signal was
        sent.
        """
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self.process.pid}/task")
        while any(_state_of(thread) != STOPPED for thread in threads.iterdir()):
            time.sleep(0.001)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def log_tail(self) -> str:
        if not self.log_path.exists():
            return ""
        return self.log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")


def etcd_cluster(
    directory: Path, members: int, *, binary: EtcdBinary | None = None, arguments: Sequence[str] = ()
) -> list[EtcdProcess]:
    """Yields a cluster whose members have all started."""
    processes = [
        EtcdProcess(
            directory / f"etcd-{number}",
            directory / f"etcd-{number}.log",
            binary=binary,
            name=f"etcd-{number}",
            arguments=arguments,
        )
        for number in range(1, members + 1)
    ]
    for process in processes:
        process.members = processes
    for process in processes:
        process.spawn()
    try:
        for process in processes:
            process.wait_until_up()
    except EtcdStartError:
        for process in processes:
            process.kill()
        raise
    return processes


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _state_of(thread: Path) -> str:
    """Returns the letter of a thread's state in /proc."""
    return (thread / "stat").read_text().rsplit(")", 1)[1].split()[0]
