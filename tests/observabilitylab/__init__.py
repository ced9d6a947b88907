"""Tests dashboards and alert rules on a real Prometheus: its process, traffic, and the panels' queries."""
