"""A Prometheus with its own port, directory and targets, and queries like Grafana's."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

START_TIMEOUT_S = 30.0
ANSWER_TIMEOUT_S = 20.0
END_TIMEOUT_S = 20.0
TRIES = 2
ASK_AGAIN_S = 0.2
SCRAPE_INTERVAL_S = 2

Series = list[dict[str, Any]]
"""The series of a response: `metric` (labels) and `value` or `values`."""


@dataclass(frozen=True)
class Target:
    """A scraped address, and the labels that Prometheus adds to its series."""

    job: str
    address: str
    labels: Mapping[str, str]
    path: str = "/metrics"


def is_installed() -> bool:
    return shutil.which("prometheus") is not None and shutil.which("promtool") is not None


class Prometheus:
    """`with Prometheus(directory, targets, rule_files) as prometheus:` runs Prometheus."""

    def __init__(
        self,
        directory: Path,
        targets: Sequence[Target],
        rule_files: Sequence[Path] = (),
        *,
        retention: str = "15d",
        scrape_interval_s: int = SCRAPE_INTERVAL_S,
    ) -> None:
        self._directory = directory
        self._targets = targets
        self._rule_files = rule_files
        self._retention = retention
        self._scrape_interval_s = scrape_interval_s
        self._address = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Prometheus:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._write_config()
        for tries_left in reversed(range(TRIES)):
            try:
                self._start()
                return self
            except RuntimeError:
                if not tries_left:  # another process may have taken the port in the meantime
                    raise
        raise AssertionError("not reached")

    def _start(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{probe.getsockname()[1]}"
        command = [
            "prometheus",
            f"--config.file={self._config_file}",
            f"--storage.tsdb.path={self._directory / 'data'}",
            f"--storage.tsdb.retention.time={self._retention}",
            f"--web.listen-address={self._address}",
            "--log.level=warn",
        ]
        with (self._directory / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self._await_ready()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def retarget(self, targets: Sequence[Target]) -> None:
        """Changes the targets, because a restarted process has another port."""
        self._targets = targets
        self._write_config()
        if self._process is not None:
            self._process.send_signal(signal.SIGHUP)

    @property
    def _config_file(self) -> Path:
        return self._directory / "prometheus.yaml"

    def _write_config(self) -> None:
        self._config_file.write_text(yaml.safe_dump(self._config()))

    def _config(self) -> dict[str, Any]:
        jobs: dict[tuple[str, str], list[Target]] = {}
        for target in self._targets:
            jobs.setdefault((target.job, target.path), []).append(target)
        interval = f"{self._scrape_interval_s}s"
        return {
            "global": {
                "scrape_interval": interval,
                "scrape_timeout": interval,
                "evaluation_interval": interval,
            },
            "rule_files": [str(path) for path in self._rule_files],
            "scrape_configs": [
                {
                    "job_name": job,
                    "metrics_path": path,
                    "static_configs": [
                        {"targets": [target.address], "labels": dict(target.labels)} for target in targets
                    ],
                }
                for (job, path), targets in jobs.items()
            ],
        }

    def _await_ready(self) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=1) as answer:
                    if answer.status == 200:
                        return
            except (OSError, http.client.HTTPException):
                pass
            if time.monotonic() > deadline_s or (self._process and self._process.poll() is not None):
                log = (self._directory / "prometheus.log").read_text()
                raise RuntimeError(f"Prometheus is not ready after {START_TIMEOUT_S} s:\n{log[-4000:]}")
            time.sleep(ASK_AGAIN_S)

    @property
    def url(self) -> str:
        return f"http://{self._address}"

    # -- queries

    def ask(self, path: str, **parameters: str | list[str]) -> Any:
        """Returns `data` of the response. Raises ValueError if Prometheus rejects the query."""
        query = urllib.parse.urlencode(parameters, doseq=True)
        request = urllib.request.Request(f"http://{self._address}/api/v1/{path}?{query}")
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{parameters}: {error.read().decode(errors='replace')}") from error

    def now(self, expression: str) -> Series:
        """Returns the current value of an expression."""
        return list(self.ask("query", query=expression)["result"])

    def over(self, expression: str, duration_s: float, step_s: float) -> Series:
        """Returns the values of the last `duration_s`."""
        end_s = time.time()
        found = self.ask(
            "query_range",
            query=expression,
            start=f"{end_s - duration_s:.3f}",
            end=f"{end_s:.3f}",
            step=f"{step_s}",
        )
        return list(found["result"])

    def label_values(self, metric: str, label: str) -> list[str]:
        """Returns the choices of a dashboard's variable."""
        return list(self.ask(f"label/{label}/values", **{"match[]": metric}))

    def await_scrapes(self, count: int, timeout_s: float) -> None:
        """Waits until each target has been scraped `count` times."""
        self.await_true(
            lambda: (
                sum(float(s["value"][1]) >= count for s in self.now("count_over_time(up[10m])"))
                >= len(self._targets)
            ),
            f"{count} scrapes of each of {len(self._targets)} targets",
            timeout_s,
        )

    def await_true(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Waits for the condition. Raises TimeoutError, which names `what`."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"not within {timeout_s} s: {what}")
            time.sleep(ASK_AGAIN_S)
