"""The version and the kind of this build of tidelog."""

from __future__ import annotations

from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec


def is_compiled() -> bool:
    """Returns whether the request path is machine code (ADR 0020), without importing it."""
    spec = find_spec("tidelog.metrics.telemetry")
    return spec is not None and (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))


@lru_cache(maxsize=1)
def tidelog_version() -> str:
    """Returns the version of the installed distribution, or "unknown" if tidelog is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # costs 10 ms that not every process needs

    try:
        return version("tidelog")
    except PackageNotFoundError:
        return "unknown"
