"""Value formats from command-line options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.formats.value_format import RAW, ValueFormat, ValueKind, load_value_format


def file(directory: Path, name: str, content: bytes = b"{}") -> str:
    (directory / name).write_bytes(content)
    return str(directory / name)


def test_raw_and_json_need_no_options(tmp_path: Path) -> None:
    assert load_value_format("raw") == RAW
    assert load_value_format("json") == ValueFormat(ValueKind.JSON)
    given = load_value_format("json", schema_files=[file(tmp_path, "s.sql", b"a INT")])
    assert given.json_schema == "a INT"


def test_schema_ids_come_before_the_file_or_from_its_name(tmp_path: Path) -> None:
    files = [file(tmp_path, "17-flight.avsc"), f"3={file(tmp_path, 'x.avsc')}", file(tmp_path, "4.avsc")]
    found = load_value_format("avro", schema_files=files, framing="confluent")
    assert [schema.schema_id for schema in found.avro_schemas] == [17, 3, 4]
    assert [schema.name for schema in found.avro_schemas] == ["17-flight.avsc", "x.avsc", "4.avsc"]


@pytest.mark.parametrize(
    ("kind", "files", "options", "expected"),
    [
        ("raw", ["a.avsc"], {}, "raw values have no schema"),
        ("raw", [], {"framing": "confluent"}, "raw values have no framing"),
        ("json", [], {"message": "x"}, "json values have no message name"),
        ("json", ["a.avsc", "b.avsc"], {}, "at most one schema"),
        ("avro", [], {}, "need the schema that they were written with"),
        ("avro", ["a.avsc", "b.avsc"], {}, "plain Avro values do not name their schema"),
        ("avro", ["a.avsc"], {"framing": "confluent"}, "the schema a.avsc has no id"),
        ("avro", ["1-a.avsc", "1-b.avsc"], {"framing": "confluent"}, "two Avro schemas have the id 1"),
        ("avro", ["missing.avsc"], {}, "No such file"),
        ("avro", ["latin.avsc"], {}, "is not UTF-8 text"),
        ("protobuf", [], {"message": "x.Y"}, "need a file with the FileDescriptorSet"),
        ("protobuf", ["a.avsc"], {}, "and the message's full name"),
        (
            "protobuf",
            ["a.avsc"],
            {"framing": "single-object", "message": "x"},
            "single-object framing is for Avro",
        ),
    ],
)
def test_contradictory_options_are_reported_in_one_sentence(
    tmp_path: Path, kind: str, files: list[str], options: dict[str, Any], expected: str
) -> None:
    for name in ("a.avsc", "b.avsc", "1-a.avsc", "1-b.avsc"):
        file(tmp_path, name)
    file(tmp_path, "latin.avsc", b"\xff")
    paths = [str(tmp_path / name) for name in files]
    with pytest.raises(PipelineError) as caught:
        load_value_format(kind, schema_files=paths, **options)
    assert expected in str(caught.value)
