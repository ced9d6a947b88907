"""Tests of the chart on a real cluster: install, use, kill, upgrade (`make e2e`)."""
