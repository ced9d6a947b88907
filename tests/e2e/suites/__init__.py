"""What `make e2e` runs; not part of `make test`."""
