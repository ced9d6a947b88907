"""Stubs of protos/tidelog/otlp/v1, made by tools/protos/generate.py; not edited by hand."""
