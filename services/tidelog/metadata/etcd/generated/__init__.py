"""Stubs of protos/etcd, made by tools/protos/generate.py; not edited by hand."""
