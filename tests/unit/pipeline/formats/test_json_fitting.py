"""JSON values as columns: which values fit, why others do not, and which columns new fields make."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.pipeline.formats.columns import MAX_COLUMNS, Shape, merged, sum_of, widened
from tidelog.pipeline.formats.decoder import DecodePlan, decode, observed
from tidelog.pipeline.formats.value_format import NewFields, ValueFormat, ValueKind

EMPTY = pa.struct([])
JSON = ValueFormat(ValueKind.JSON)
IGNORING = ValueFormat(ValueKind.JSON, new_fields=NewFields.IGNORE)
REFUSING = ValueFormat(ValueKind.JSON, new_fields=NewFields.QUARANTINE)


def struct(**fields: Any) -> Any:
    return pa.struct(list(fields.items()))


def run(
    values: list[bytes | None], kind: Any, value_format: ValueFormat = JSON, *, is_last: bool = True
) -> list[tuple[Any, str | None, bool]]:
    """Returns (fields, reason, has new fields) of each value."""
    plan = DecodePlan.of(value_format, kind, is_last=is_last)
    found = decode(pa.array(values, pa.binary()), plan).to_pylist()
    return [(row.get("fields"), row["error_reason"], row["has_new_fields"]) for row in found]


def reason(value: bytes, kind: Any, value_format: ValueFormat = JSON) -> str | None:
    return run([value], kind, value_format)[0][1]


def inferred(*records: Any, known: Any = EMPTY) -> Any:
    return widened(known, observed(json.dumps(record).encode() for record in records))


def test_columns_of_the_first_batch() -> None:
    kind = inferred(
        {"carrier": "AA", "delay": 5, "late": True, "when": None},
        {"carrier": "UA", "delay": 5.5, "at": {"x": 1, "tags": ["a"]}, "none": [], "empty": {}},
    )
    assert kind == struct(
        carrier=pa.string(),
        delay=pa.float64(),
        late=pa.bool_(),
        at=struct(x=pa.int64(), tags=pa.list_(pa.string())),
    )


def test_the_most_frequent_type_becomes_the_column_type() -> None:
    kind = inferred({"a": "x"}, {"a": 1}, {"a": 2})
    assert kind == struct(a=pa.int64())
    assert reason(b'{"a": "x"}', kind) == "field a is text, but the table has bigint"


def test_large_integers_make_decimals_only_if_most_are_large() -> None:
    huge = 10**20
    assert inferred({"a": 1}, {"a": huge}) == struct(a=pa.int64())
    assert inferred({"a": huge}, {"a": 1}, {"a": huge}) == struct(a=pa.decimal128(38, 0))
    assert (
        reason(b'{"a": 100000000000000000000}', struct(a=pa.int64()))
        == "field a is an integer outside the range of bigint"
    )


def test_a_table_keeps_its_types_and_gets_new_fields_also_nested_ones() -> None:
    known = struct(a=pa.string(), s=struct(x=pa.int64()), l=pa.list_(struct(p=pa.int64())))
    kind = inferred({"a": 1, "s": {"y": "n"}, "l": [{"q": True}], "b": 1}, known=known)
    assert kind == struct(
        a=pa.string(),
        s=struct(x=pa.int64(), y=pa.string()),
        l=pa.list_(struct(p=pa.int64(), q=pa.bool_())),
        b=pa.int64(),
    )


def test_new_fields_are_reported_first_and_refused_last() -> None:
    known = struct(a=pa.int64())
    assert run([b'{"a": 1, "b": 2}'], known, is_last=False) == [({"a": 1}, None, True)]
    assert run([b'{"a": 1, "b": 2}'], known, IGNORING) == [({"a": 1}, None, False)]
    assert reason(b'{"b": 2}', known, REFUSING) == "field b is not among the table's columns"
    assert "cannot become a column" in (reason(b'{"b": 2}', known) or "")
    # A value that shows no type is not a new field.
    assert run([b'{"a": 1, "b": null, "c": {}, "d": [{}, null]}'], known, REFUSING) == [
        ({"a": 1}, None, False)
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", "the value is not JSON: Expecting value at character 0"),
        (b"{", "the value is not JSON: Expecting property name enclosed in double quotes at character 1"),
        (b'{"a": 1} x', "the value is not JSON: Extra data at character 9"),
        (b"\xff{}", "the value is not JSON: invalid UTF-8 at byte 0"),
        (b"\xef\xbb\xbf{}", "the value is not JSON: Expecting value at character 0"),
        (b'{"a": NaN}', "the value is not JSON: NaN is not a JSON number"),
        (b'{"a": 1e999}', "the value is not JSON: a number is too large for double"),
        (b'{"a": ' + b"9" * 5000 + b"}", "the value is not JSON: Exceeds the limit"),
        (b"[" * 100_000, "the value is JSON that is too deeply nested"),
        (b"[1]", "the value is an array instead of an object"),
        (b"null", "the value is null instead of an object"),
        (b'{"a": "1"}', "field a is text, but the table has bigint"),
        (b'{"a": 1.5}', "field a is a fraction, but the table has bigint"),
        (b'{"a": true}', "field a is a boolean, but the table has bigint"),
        (b'{"a": {"b": 1}}', "field a is an object, but the table has bigint"),
        (b'{"s": {"x": [1, "y"]}}', "field s.x.[1] is text, but the table has bigint"),
        (b'{"s": 1}', "field s is an integer, but the table has struct"),
        (b'{"s": {"x": 1}}', "field s.x is an integer, but the table has array<bigint>"),
        (b'{"t": "\\ud800"}', "field t cannot be stored: 'utf-8' codec can't encode"),
        (b'{"kafka_offset": 1}', "field kafka_offset has a name reserved for the archive's own columns"),
        (b'{"Event_Date": 1}', "field Event_Date has a name reserved for the archive's own columns"),
        (b'{"A": 1}', "field A differs from column a only in upper and lower case"),
        ('{"\u0131d": 1}'.encode(), "field \u0131d differs from column id"),
        (b'{"": 1}', 'field "" has an empty name'),
        (b'{"x y": 1, "x_y": 2}', "field x_y and another field are both the column x_y"),
    ],
)
def test_a_value_that_does_not_fit_is_reported_with_its_field(value: bytes, expected: str) -> None:
    kind = struct(
        a=pa.int64(), s=struct(x=pa.list_(pa.int64())), t=pa.string(), x_y=pa.int64(), id=pa.int64()
    )
    rows = run([b'{"a": 7, "t": "y"}', value, None], kind)
    assert (rows[1][1] or "").startswith(expected)
    # The other values of the batch are not affected. A tombstone is a row without fields.
    assert rows[0][1] is None
    assert rows[0][0]["a"] == 7
    assert rows[2] == (None, None, False)


def test_numbers_that_fit_without_loss_are_accepted() -> None:
    kind = struct(a=pa.int64(), b=pa.float64(), c=pa.decimal128(5, 2), d=pa.int32())
    assert run([b'{"a": 3.0, "b": 2, "c": 1.5, "d": -1}'], kind)[0][1] is None
    assert "cannot hold exactly" in (reason(b'{"b": 9007199254740993}', kind) or "")
    assert "cannot hold exactly" in (reason(b'{"c": 1.555}', kind) or "")
    assert "decimal(5,2) cannot hold" in (reason(b'{"c": 1e9}', kind) or "")
    assert "outside the range of int" in (reason(b'{"d": 3000000000}', kind) or "")


def test_times_dates_and_bytes_by_a_given_schema() -> None:
    kind = struct(
        t=pa.timestamp("us", tz="UTC"), d=pa.date32(), b=pa.binary(), m=pa.map_(pa.string(), pa.int64())
    )
    value = b'{"t": "2026-01-31T12:00:00+02:00", "d": "2026-01-31", "b": "aGk=", "m": {"x": 1}}'
    row, why, _ = run([value], kind)[0]
    assert why is None
    assert (row["t"].isoformat(), str(row["d"]), row["b"]) == (
        "2026-01-31T10:00:00+00:00",
        "2026-01-31",
        b"hi",
    )
    assert row["m"] == [("x", 1)]
    assert "not a timestamp" in (reason(b'{"t": "soon"}', kind) or "")
    assert "an integer, but the table has timestamp" in (reason(b'{"t": 5}', kind) or "")
    assert "not a date" in (reason(b'{"d": "31.1."}', kind) or "")
    assert "not Base64" in (reason(b'{"b": "?"}', kind) or "")
    assert "but the table has map<string,bigint>" in (reason(b'{"m": [1]}', kind) or "")


def test_names_that_tables_reject_are_changed_without_clashes() -> None:
    kind = inferred({"http.status": 200, "a b": 1})
    assert kind == struct(http_status=pa.int64(), a_b=pa.int64())
    assert run([b'{"http.status": 1, "a b": 2}'], kind) == [({"http_status": 1, "a_b": 2}, None, False)]
    assert inferred({"x": 1, "X": "y", "kafka_x": 1}) == struct(x=pa.int64())


def test_a_map_written_as_an_object_makes_a_bounded_number_of_columns() -> None:
    records = [{"m": {f"key{number}": 1}, "often": 1} for number in range(MAX_COLUMNS + 50)]
    kind = inferred(*records)
    names = [field.name for field in kind]
    assert names == ["m", "often"]
    assert kind.field("m").type.num_fields == MAX_COLUMNS - 2
    outcome = run([json.dumps(record).encode() for record in records], kind)
    refused = [why for _, why, _ in outcome if why]
    assert len(refused) == 52
    assert refused[0].endswith("a table has at most 2000 columns and 16 levels")


def test_a_deeply_nested_value_is_refused_as_a_whole() -> None:
    deep: Any = 1
    for _ in range(20):
        deep = {"d": deep}
    kind = inferred({"a": 1, "x": deep})
    assert "cannot become a column" in (reason(json.dumps({"a": 1, "x": deep}).encode(), kind) or "")


def test_a_reason_is_one_line_of_bounded_length() -> None:
    told = reason(json.dumps({"x\n" * 100: 1}).encode(), struct(a=pa.int64())) or ""
    assert 0 < len(told) <= 500
    assert "\n" not in told


SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
RECORDS = st.lists(
    st.dictionaries(st.sampled_from(["a", "b", "A", "kafka_x", "c d", ""]), VALUES), max_size=6
)


@given(RECORDS, st.lists(st.binary(max_size=8), max_size=3))
def test_each_value_has_fields_or_a_reason_and_is_stored_unchanged(
    records: list[dict[str, Any]], noise: list[bytes]
) -> None:
    values = [json.dumps(record).encode() for record in records] + noise
    kind = widened(EMPTY, observed(values))
    assert widened(kind, observed(values)) == kind  # a second run finds nothing new
    for value, (fields, why, _) in zip(values, run(list(values), kind), strict=True):
        assert why is None or fields is None
        if why is None and fields:
            sent = json.loads(value)
            assert {name for name, item in fields.items() if item is not None} <= set(sent) | {"c_d"}
            for name, item in fields.items():
                given_item = sent.get(name, sent.get("c d") if name == "c_d" else None)
                if isinstance(item, int | float | str | bool):
                    assert item == given_item


@given(RECORDS)
def test_shapes_are_independent_of_the_division_of_records(records: list[dict[str, Any]]) -> None:
    values = [json.dumps(record).encode() for record in records]
    parts = [Shape.from_json(json.loads(json.dumps(observed([value]).to_json()))) for value in values]
    assert sum_of(parts).to_json() == observed(values).to_json()


def test_merged_keeps_the_types_of_the_table() -> None:
    assert merged(struct(a=pa.int64()), struct(A=pa.string(), b=pa.string())) == struct(
        a=pa.int64(), b=pa.string()
    )
