"""The type of JSON objects, for code that reads or writes them key by key."""

from __future__ import annotations

from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""A parsed JSON object. The type of a value is known only after its key, at run time."""
