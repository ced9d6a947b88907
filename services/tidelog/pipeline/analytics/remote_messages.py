"""The necessary messages of Prometheus' remote-read protocol, built without protoc. The module does no I/O.

The source is prompb/remote.proto and prompb/types.proto of Prometheus.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE: Final = "tidelog.prometheus"
_TYPES: Final = {
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "double": descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
}
# Enums are numbers on the wire, so int32 suffices.
_MESSAGES: Final = {
    "ReadRequest": ("1 repeated Query queries", "2 repeated int32 accepted_response_types"),
    "Query": (
        "1 one int64 start_timestamp_ms",
        "2 one int64 end_timestamp_ms",
        "3 repeated LabelMatcher matchers",
    ),
    "LabelMatcher": ("1 one int32 type", "2 one string name", "3 one string value"),
    "ReadResponse": ("1 repeated QueryResult results",),
    "QueryResult": ("1 repeated TimeSeries timeseries",),
    "TimeSeries": ("1 repeated Label labels", "2 repeated Sample samples"),
    "Label": ("1 one string name", "2 one string value"),
    "Sample": ("1 one double value", "2 one int64 timestamp"),
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="tidelog/prometheus/remote.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for text in fields:
            number, label, kind, field_name = text.split()
            field = message.field.add(name=field_name, number=int(number))
            is_repeated = label == "repeated"
            field.label = (
                descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
                if is_repeated
                else descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
            )
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
    return file


def _classes() -> dict[str, Any]:  # built at run time
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in ("ReadRequest", "ReadResponse")
    }


_MADE: Final = _classes()
ReadRequest: Final = _MADE["ReadRequest"]
ReadResponse: Final = _MADE["ReadResponse"]
