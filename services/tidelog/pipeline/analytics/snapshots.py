"""Scraped pages of /metrics as records of a topic. The key is the target, the value the page, and the
timestamp the time of the scrape.

A target that did not answer yields a record without a value that gives the reason. Labels besides those of
the page are headers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from tidelog.pipeline.analytics.facts import Fact, Sample, facts_of, node_ids
from tidelog.pipeline.analytics.metric_names import ALL
from tidelog.pipeline.analytics.text_format import samples_of
from tidelog.records.record import Record

LABEL_HEADER: Final = "label."
ERROR_HEADER: Final = "tidelog.scrape.error"
_WANTED: Final = frozenset(ALL)


def kept_lines(page: str, wanted: Collection[str] = _WANTED) -> str:
    """Returns the lines of the given metrics only, which are a small part of the page."""
    return "".join(
        f"{line}\n" for line in page.split("\n") if line.partition(" ")[0].partition("{")[0] in wanted
    )


def snapshot_record(
    target: str, labels: Mapping[str, str], at_ms: int, page: str | None, failure: str | None
) -> Record:
    """Returns the record of a scrape. If `page` is None, `failure` is the reason."""
    headers: list[tuple[str, bytes]] = [
        (f"{LABEL_HEADER}{name}", value.encode()) for name, value in sorted(labels.items())
    ]
    if failure is not None:
        headers.append((ERROR_HEADER, failure.encode()))
    return Record(
        offset=0,
        timestamp=at_ms,
        key=target.encode(),
        value=None if page is None else page.encode(),
        headers=tuple(headers),
    )


def snapshot_facts(
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
    at_ms: int,
) -> Iterator[Fact]:
    """Returns the facts of one record. Raises ExpositionError if the page is malformed."""
    if value is None:
        return
    own = {"instance": (key or b"").decode(errors="replace")}
    for name, content in headers:
        if name.startswith(LABEL_HEADER):
            own[name.removeprefix(LABEL_HEADER)] = (content or b"").decode(errors="replace")
    samples = [
        Sample(s.metric, {**s.labels, **own}, s.at_ms, s.value)
        for s in samples_of(value.decode(errors="replace"), at_ms, _WANTED)
    ]
    yield from facts_of(samples, node_ids(samples))
