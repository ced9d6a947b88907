"""Load, histories, checker and report of chaos runs; `python -m chaoslab` runs experiments on a cluster."""
