"""Dashboards and alert rules on a real Prometheus: its process, traffic to look at, panels' queries."""
