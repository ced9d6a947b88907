"""The common parts of the tests of transactions."""
