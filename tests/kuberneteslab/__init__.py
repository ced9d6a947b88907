"""The common parts of the tests of `tidelog kubernetes`."""
