"""Converts values into columns: raw bytes, JSON, Avro, Protobuf. A value that cannot be read is returned with
the reason.
"""
