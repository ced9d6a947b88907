"""Scrapes a broker's metrics like Prometheus. The broker needs `tidelog.metrics.listener=127.0.0.1:0`."""

from __future__ import annotations

import http.client
import urllib.request

import psutil

TIMEOUT_S = 5.0
METRICS_LISTENER = {"tidelog.metrics.listener": "127.0.0.1:0"}
SHRINKS = "kafka_server_replicamanager_isrshrinks_total"
EXPANDS = "kafka_server_replicamanager_isrexpands_total"
UNDER_REPLICATED = "kafka_server_replicamanager_underreplicatedpartitions"


def metrics_url(pid: int) -> str:
    """Returns the URL of the port, among those the process listens on, that answers /metrics."""
    ports = sorted(
        c.laddr.port
        for c in psutil.Process(pid).net_connections(kind="tcp")
        if c.status == psutil.CONN_LISTEN
    )
    for port in ports:
        url = f"http://127.0.0.1:{port}/metrics"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                if answer.status == 200:
                    return url
        except (OSError, http.client.HTTPException):
            continue  # this port has another protocol
    raise RuntimeError(f"none of the ports {ports} of process {pid} serves metrics")


def unlabelled(url: str) -> dict[str, float]:
    """Returns name -> value of all samples without labels."""
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        text = answer.read().decode()
    samples = (line.split(" ") for line in text.splitlines() if not line.startswith("#") and "{" not in line)
    return {name: float(value) for name, value, *_ in samples}
