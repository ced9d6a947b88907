"""Which build of tidelog this is."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec


def is_compiled() -> bool:
    """Whether the request path is machine code (ADR 0020). Imports none of it."""
    spec = find_spec("tidelog.runtime.request_metrics")
    return spec is not None and (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))
