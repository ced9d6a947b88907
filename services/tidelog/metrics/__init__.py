"""Counters that the services keep, and the endpoint that shows them to Prometheus and to probes.

Each service has its metrics beside itself (`broker/metrics.py`, `controller/metrics.py`,
`group_coordinator/metrics.py`). The command that runs a process registers them with its `ProcessMetrics`.
"""
