"""All services of a cluster in one process: what `tidelog dev` and `tidelog.testing` start."""
