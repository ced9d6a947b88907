"""Filters on records, and the text of what they find."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.console.core.record_query import FilterError, JsonCondition, RecordFilter
from tidelog.console.core.record_text import PREVIEW_BYTES, show
from tidelog.records.record import Record


def record(value: bytes | None = b"value", key: bytes | None = b"key", **headers: bytes | None) -> Record:
    return Record(0, 0, key, value, tuple(headers.items()))


@pytest.mark.parametrize(
    ("fields", "is_found"),
    [
        (("", "", "", ""), True),
        (("ke", "al", "", ""), True),
        (("KE", "", "", ""), False),
        (("", "", "trace", ""), True),
        (("", "", "trace=b-1", ""), True),
        (("", "", "trace=c", ""), False),
        (("", "", "trac", ""), False),
        (("", "", "", "a=1"), False),
    ],
)
def test_a_record_must_meet_all_conditions(fields: tuple[str, str, str, str], is_found: bool) -> None:
    assert RecordFilter.parse(*fields).matches(record(trace=b"ab-1")) is is_found


def test_text_matches_bytes_that_are_no_text() -> None:
    assert RecordFilter(value="ü").matches(record(b"\xff" + "für".encode()))
    assert not RecordFilter(value="x").matches(record(None))


ORDER = json.dumps(
    {"id": 7, "user": {"name": "Ada", "vip": True}, "lines": [{"sku": "A7", "n": 1.5}]}
).encode()


@pytest.mark.parametrize(
    "condition",
    ["id=7", "$.id==7", "id = 7.0", 'user.name="Ada"', "user.name=Ada", "lines[0].sku=A7", "lines[0].n=1.5"],
)
def test_a_json_condition_finds_a_value_at_its_path(condition: str) -> None:
    assert JsonCondition.parse(condition).matches(ORDER)


@pytest.mark.parametrize(
    "condition",
    [
        "id=8",
        "id=true",
        'id="7"',
        "user.vip=1",
        "lines[1].sku=A7",
        "lines.sku=A7",
        "user[0]=Ada",
        "none=null",
    ],
)
def test_a_json_condition_refuses_other_values(condition: str) -> None:
    assert not JsonCondition.parse(condition).matches(ORDER)


@pytest.mark.parametrize("value", [b"", b"{", b"\xff\xfe", b"[" * 200_000, None])
def test_a_json_condition_survives_what_is_no_json(value: bytes | None) -> None:
    assert not JsonCondition.parse("a=1").matches(value)


@pytest.mark.parametrize("text", ["a", "=1", "a[x]=1", "a[=1", ".".join("abcdefgh" * 5) + "=1"])
def test_a_wrong_json_condition_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(FilterError, match=r"\.$"):
        JsonCondition.parse(text)


def test_bytes_are_shown_as_json_text_or_numbers() -> None:
    assert show(None, 100)[:2] == ("null", "null")
    assert show(b'{"a": [1]}', 100)[:2] == ("json", '{\n  "a": [\n    1\n  ]\n}')
    assert show("für".encode(), 100)[:2] == ("text", "für")
    assert show(b"{not json", 100)[:2] == ("text", "{not json")
    assert show(b"\x00\x01A\xff", 100)[:2] == ("hex", f"000000  {'00 01 41 ff':<47}  ..A.")


def test_a_surrogate_in_json_is_shown_as_it_was_sent() -> None:
    assert show(b'{"a": "\\ud800"}', 100)[:2] == ("text", '{"a": "\\ud800"}')


def test_a_schema_id_is_named() -> None:
    assert "schema id 258 of a registry" in show(b"\x00\x00\x00\x01\x02\x05ab", 100).note


def test_json_with_a_schema_id_is_json() -> None:
    data = b'\x00\x00\x00\x00\x07{"a": 1}'
    assert show(data, 100) == ("json", '{\n  "a": 1\n}', len(data), 0, "Its schema id is 7.")
    assert JsonCondition.parse("a=1").matches(data)


def test_json_whose_indentation_explodes_is_shown_as_text() -> None:
    deep = b"[" * 900 + b"]" * 900
    assert show(deep, PREVIEW_BYTES).kind == "text"


@given(st.binary(max_size=300), st.integers(1, 200))
def test_what_is_shown_is_bounded_and_encodable(data: bytes, max_bytes: int) -> None:
    shown = show(data, max_bytes)
    assert shown.size_bytes == len(data)
    assert 0 <= shown.omitted_bytes <= len(data)
    assert len(shown.text.encode()) <= 20 * max_bytes + 80


@given(st.text(alphabet="aé€𝄞", min_size=1), st.integers(1, 20))
def test_text_is_cut_between_characters(text: str, max_bytes: int) -> None:
    data = text.encode()
    shown = show(data, max_bytes)
    if shown.kind == "text":
        assert text.startswith(shown.text)
    else:
        assert len(data) > max_bytes < 4  # not even one character fits


def test_deep_json_is_not_indented_beyond_the_limit() -> None:
    """Indentation would make 10 KB of nested arrays 7 MB long."""
    deep = b"[" * 900 + b"1," * 4_000 + b"1" + b"]" * 900
    tracemalloc.start()
    try:
        shown = show(deep, 2 * len(deep))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert shown.kind != "json"
    assert peak_bytes < 3_000_000


@pytest.mark.parametrize(
    "text",
    ["\u3000全角", "10\u00a0000\u202f€", "\u0645\u06cc\u200c\u062e", "👨\u200d👩\u200d👧", "שלום", "e\u0301"],
)
def test_spaces_and_joiners_of_other_scripts_are_text(text: str) -> None:
    assert show(text.encode(), 100)[:2] == ("text", text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("gnp.\u202eexe", "gnp.\\u202eexe"),
        ("a\u200bb\ufeff", "a\\u200bb\\ufeff"),
        ("a\u2028b", "a\\u2028b"),
        ("a\U000e0041", "a\\udb40\\udc41"),
    ],
)
def test_invisible_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    found = show(text.encode(), 100)
    assert found[:2] == ("text", shown)
    assert found.note == "Invisible characters are shown as \\u and their number."
    found = show(json.dumps({"a": text}).encode(), 100)
    assert (found.kind, found.note) == ("json", "")
    assert shown in found.text
    assert json.loads(found.text) == {"a": text}


@pytest.mark.parametrize(
    "text",
    [
        '{"n": 12345678901234567890.123456789}',
        '{"n": 1e400}',
        '{"n": -0.10000000000000000001}',
        '{"a": 1, "a": 2}',
        '{"n": NaN}',
    ],
)
def test_json_that_would_change_is_shown_as_it_is(text: str) -> None:
    assert show(text.encode(), 100)[:2] == ("text", text)


def test_json_numbers_keep_their_value() -> None:
    text = '{"n": 12345678901234567890, "m": 1.50, "k": 1E2, "z": -0.0}'
    assert json.loads(show(text.encode(), 200).text) == json.loads(text)
    assert show(text.encode(), 200).kind == "json"
