"""A cluster of `tidelog cluster up`: brokers, controllers, a coordinator and etcd, each a process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from brokerlab.broker_process import tidelog_command
from clusterlab import processes
from clusterlab.etcd_gateway import EtcdGateway
from clusterlab.processes import PortRange

COMMAND_TIMEOUT_S = 120.0
READY_LINE = re.compile(r"^ready: (\S+)\s*$", re.MULTILINE)
LOG_TAIL_BYTES = 8_000


class ClusterCommandError(RuntimeError):
    """`tidelog cluster ...` failed. The message contains its output."""


class TidelogCluster:
    """Names of processes are those of pids.json: broker-1, controller-1, coordinator-1, etcd-1."""

    name = "tidelog"

    def __init__(
        self,
        data_dir: Path,
        *,
        brokers: int = 3,
        controllers: int = 2,
        settings: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.data_dir = data_dir
        self.brokers = brokers
        self.controllers = controllers
        self.settings = dict(settings or {})
        self.options = list(options)
        self.addresses: dict[str, str] = {}
        self.start_s = 0.0
        self._ports = PortRange()
        self._seen_pids: set[int] = set()

    # -- the command

    def command(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Runs `tidelog cluster ARGUMENTS --data-dir DIR` and returns its output. Raises
        ClusterCommandError.
        """
        done = subprocess.run(
            [*tidelog_command(), "cluster", *arguments, "--data-dir", str(self.data_dir)],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        self._remember()
        if done.returncode:
            said = done.stdout + done.stderr
            raise ClusterCommandError(
                f"cluster {' '.join(arguments)}: {done.returncode}\n{said}{self.log_tails()}"
            )
        return done.stdout

    def up(self) -> TidelogCluster:
        arguments = ["--brokers", str(self.brokers), "--controllers", str(self.controllers)]
        arguments += ["--base-port", str(self._ports.base), *self.options]
        for name, value in self.settings.items():
            arguments += ["--set", f"{name}={value}"]
        began_s = time.monotonic()
        said = self.command("up", *arguments)
        self.start_s = time.monotonic() - began_s
        found = READY_LINE.search(said)
        if found is None:
            raise ClusterCommandError(f"no `ready:` line in:\n{said}")
        names = sorted(
            (n for n in self.pids() if n.startswith("broker-")), key=lambda n: int(n.split("-")[1])
        )
        self.addresses = dict(zip(names, found[1].split(","), strict=True))
        return self

    def start(self, name: str) -> None:
        """Starts a process that ended. It returns when `tidelog cluster start` does."""
        self.command("start", name)

    def down(self) -> None:
        self.command("down")

    def destroy(self) -> None:
        """Ends every process of this cluster, whatever happened."""
        with contextlib.suppress(OSError, ValueError):
            self._remember()
        for pid in self._seen_pids:
            with contextlib.suppress(ProcessLookupError):
                if any(str(self.data_dir) in part for part in processes.command_line(pid)):
                    processes.kill(pid)
        self._ports.release()

    # -- its processes

    def _remember(self) -> None:
        if (self.data_dir / "pids.json").exists():
            self._seen_pids.update(self.pids().values())
        if (self.data_dir / "renewals.json").exists():
            self._seen_pids.add(self.renewals_pid())

    def pids(self) -> dict[str, int]:
        found: dict[str, int] = json.loads((self.data_dir / "pids.json").read_text())
        return found

    def pid(self, name: str) -> int:
        return self.pids()[name]

    def renewals_pid(self) -> int:
        """Returns the pid of the process that renews the cluster's certificates."""
        found: dict[str, int] = json.loads((self.data_dir / "renewals.json").read_text())
        return found["renewals"]

    def is_alive(self, name: str) -> bool:
        return processes.is_alive(self.pid(name))

    def signal(self, name: str, number: signal.Signals) -> float:
        """Signals the process directly, without the command. Returns the monotonic time of the signal."""
        pid = self.pid(name)
        now_s = time.monotonic()
        processes.send(pid, number)
        return now_s

    def kill(self, name: str) -> float:
        """Sends SIGKILL, waits for the end, and returns the time of the signal."""
        pid = self.pid(name)
        now_s = time.monotonic()
        processes.kill(pid)
        return now_s

    # -- its answers

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses.values())

    def address(self, broker_id: int) -> str:
        return self.addresses[f"broker-{broker_id}"]

    def live_addresses(self) -> list[str]:
        return [
            a
            for name, a in self.addresses.items()
            if processes.state_of(self.pid(name)) not in ("", "Z", "T")
        ]

    def etcd_url(self, option: str = "--listen-client-urls") -> str:
        """Returns a URL in etcd's command line."""
        pid = self.pid("etcd-1")
        line = processes.command_line(pid)
        for part in line:
            name, _, value = part.partition("=")
            if name == option:
                return value
        raise RuntimeError(f"etcd (process {pid}) has no {option}: {line}")

    def etcd(self) -> EtcdGateway:
        return EtcdGateway(self.etcd_url(), self.data_dir / "certificates" / "tools-1")

    def active_controller(self) -> str:
        """Returns the name of the process that holds /controller."""
        found = self.etcd().get("/controller")
        if found is None:
            raise RuntimeError("no controller holds /controller")
        return f"controller-{found.json['controller_id']}"

    def log_dir(self, broker_id: int) -> Path:
        """Returns the directory with the broker's partitions, which contains its meta.properties."""
        for path in self.data_dir.rglob("meta.properties"):
            lines = path.read_text().split()
            if f"broker.id={broker_id}" in lines or f"node.id={broker_id}" in lines:
                return path.parent
        raise FileNotFoundError(f"no meta.properties of broker {broker_id} under {self.data_dir}")

    def log_tails(self) -> str:
        """Returns the ends of the processes' logs, for the report of a failed test."""
        parts = []
        for path in sorted(self.data_dir.glob("*.log")) + sorted(self.data_dir.glob("*/*.log")):
            if re.fullmatch(r"\d{20}\.log", path.name):
                continue
            with path.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_TAIL_BYTES))
                parts.append(f"--- {path.relative_to(self.data_dir)}\n{file.read().decode(errors='replace')}")
        return "\n".join(parts)
