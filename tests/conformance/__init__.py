"""Runs other projects' own test suites against a tidelog cluster (`make conformance`)."""
