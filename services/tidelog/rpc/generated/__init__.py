"""Stubs of protos/tidelog/rpc/v1, made by tools/protos/generate.py; not edited by hand."""
