"""A scripted API server and release for tests of `tidelog kubernetes`, and the dashboards and alert rules of
the chart on a real Prometheus.
"""
