"""Scrapes a broker's metrics like Prometheus. The broker needs `tidelog.metrics.listener=127.0.0.1:0`."""

from __future__ import annotations

import http.client
import time
import urllib.request

import psutil

TIMEOUT_S = 5.0
PORT_TIMEOUT_S = 20.0
"""A process opens its ports one after the other, and a busy machine may not respond within TIMEOUT_S."""
METRICS_LISTENER = {"tidelog.metrics.listener": "127.0.0.1:0"}
SHRINKS = "kafka_server_replicamanager_isrshrinks_total"
EXPANDS = "kafka_server_replicamanager_isrexpands_total"
UNDER_REPLICATED = "kafka_server_replicamanager_underreplicatedpartitions"


def metrics_url(pid: int) -> str:
    """Returns the URL of the port, among those the process listens on, that answers /metrics.

    Waits for the port. Raises RuntimeError if there is none in time, and psutil.NoSuchProcess.
    """
    deadline_s = time.monotonic() + PORT_TIMEOUT_S
    while True:
        ports = sorted(
            c.laddr.port
            for c in psutil.Process(pid).net_connections(kind="tcp")
            if c.status == psutil.CONN_LISTEN
        )
        for port in ports:
            url = f"http://127.0.0.1:{port}/metrics"
            if _serves_metrics(url):
                return url
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"none of the ports {ports} of process {pid} serves metrics")
        time.sleep(0.1)


def _serves_metrics(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False  # the port has another protocol, or the process is busy


def unlabelled(url: str) -> dict[str, float]:
    """Returns name -> value of all samples without labels."""
    return {name: value for name, value in scrape(url).items() if "{" not in name}


def scrape(url: str) -> dict[str, float]:
    """Returns the values of all samples by name and labels, as they are in the text."""
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        text = answer.read().decode()
    samples = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in samples}
