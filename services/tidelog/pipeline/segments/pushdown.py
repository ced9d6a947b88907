"""Applies Spark's filters on topic, partition, offset and timestamp before the files are read."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from tidelog.records.columns.rows import ALL_ROWS, RowBounds

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NEVER_NULL: Final = ("topic", "partition", "offset", "timestamp", "timestampType")

_COMPARISONS: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {  # of two values of one column
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """`places` holds filters on topic and partition, all of which must match."""

    bounds: RowBounds = ALL_ROWS
    places: tuple[Filter, ...] = ()

    def has(self, topic: str, partition: int) -> bool:
        return all(_holds(each, topic if each.attribute == ("topic",) else partition) for each in self.places)

    def with_filters(self, filters: Iterable[Filter]) -> tuple[Wanted, list[Filter]]:
        """Returns the selection, narrowed by the filters that can be applied exactly. Spark checks the
        others.
        """
        wanted, left = self, []
        for each in filters:
            narrowed = wanted._with_filter(each)
            if narrowed is None:
                left.append(each)
            else:
                wanted = narrowed
        return wanted, left

    def _with_filter(self, each: Filter) -> Wanted | None:
        column = each.attribute[0] if len(getattr(each, "attribute", ())) == 1 else None
        if isinstance(each, IsNotNull):
            return self if column in _NEVER_NULL else None
        if column == "topic" or column == "partition":
            kind: type = str if column == "topic" else int
            if type(each) in _COMPARISONS and isinstance(each.value, kind):
                return replace(self, places=(*self.places, each))
            if isinstance(each, In) and all(isinstance(value, kind) for value in each.value):
                return replace(self, places=(*self.places, each))
            return None
        if type(each) not in _COMPARISONS:
            return None
        if column == "offset" and isinstance(each.value, int):
            return replace(self, bounds=_with_offsets(self.bounds, each))
        if column == "timestamp" and isinstance(each.value, datetime) and each.value.tzinfo is not None:
            return replace(self, bounds=_with_times(self.bounds, each))
        return None


def _holds(each: Filter, value: object) -> bool:
    if isinstance(each, In):
        return value in each.value
    return _COMPARISONS[type(each)](value, each.value)


def _with_offsets(bounds: RowBounds, each: Filter) -> RowBounds:
    first, last = _ends(each, each.value)
    if first is not None:
        bounds = replace(bounds, start_offset=max(bounds.start_offset, first))
    if last is not None:
        bounds = replace(bounds, end_offset=min(bounds.end_offset, last + 1))
    return bounds


def _with_times(bounds: RowBounds, each: Filter) -> RowBounds:
    first, last = _ends(each, (each.value - _EPOCH) // _MICROSECOND)
    if first is not None:
        known = bounds.first_timestamp_us
        bounds = replace(bounds, first_timestamp_us=first if known is None else max(known, first))
    if last is not None:
        known = bounds.last_timestamp_us
        bounds = replace(bounds, last_timestamp_us=last if known is None else min(known, last))
    return bounds


def _ends(each: Filter, value: int) -> tuple[int | None, int | None]:
    """Returns the smallest and the largest integer that satisfy the comparison."""
    if isinstance(each, GreaterThan):
        return value + 1, None
    if isinstance(each, GreaterThanOrEqual):
        return value, None
    if isinstance(each, LessThan):
        return None, value - 1
    if isinstance(each, LessThanOrEqual):
        return None, value
    return value, value
