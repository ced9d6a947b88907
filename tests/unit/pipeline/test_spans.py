"""Times and periods as users write them."""

from __future__ import annotations

import pytest

from tidelog.pipeline.commands.options import parse_ids, parse_moment, parse_span
from tidelog.pipeline.errors import PipelineError

NOW_MS = 1_790_000_000_000


@pytest.mark.parametrize(
    ("text", "span_ms"), [("90s", 90_000), ("1.5h", 5_400_000), ("7d", 604_800_000), ("250ms", 250)]
)
def test_spans(text: str, span_ms: int) -> None:
    assert parse_span("--x", text) == span_ms
    assert parse_moment("--x", text, NOW_MS) == NOW_MS - span_ms


def test_moments() -> None:
    assert parse_moment("--x", "now", NOW_MS) == NOW_MS
    assert parse_moment("--x", "1970-01-01T00:01", NOW_MS) == 60_000
    assert parse_moment("--x", "1970-01-01T01:00+01:00", NOW_MS) == 0
    assert parse_moment("--x", "123456", NOW_MS) == 123_456


@pytest.mark.parametrize("text", ["0s", "5", "h", "-3m", ""])
def test_invalid_spans(text: str) -> None:
    with pytest.raises(PipelineError, match="--x"):
        parse_span("--x", text)


def test_invalid_moments_and_ids() -> None:
    with pytest.raises(PipelineError, match="yesterday"):
        parse_moment("--x", "yesterday", NOW_MS)
    assert parse_ids("--x", "4, 3,4") == (3, 4)
    assert parse_ids("--x", None) == ()
    with pytest.raises(PipelineError, match="numbers"):
        parse_ids("--x", "a")
