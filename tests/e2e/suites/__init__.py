"""The suites of `make e2e`, which are not part of `make test`."""
