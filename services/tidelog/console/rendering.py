"""Renders pages from the templates. Everything that comes from the cluster is escaped, and its invisible
characters are made visible.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tidelog.client.admin.topics import CONFIG_SOURCES
from tidelog.console.core.record_text import visible
from tidelog.model.text import counted
from tidelog.observe.number_texts import count_text, duration_text, rate_text, size_text, time_text

HERE: Final = Path(__file__).parent


def query_text(**values: object) -> str:
    """Returns a query string of those values that are not empty."""
    return urlencode({name: value for name, value in values.items() if value not in ("", None)})


def _finalized(value: object) -> object:
    """Returns what a template prints for a value. Markup, which has its own class, is complete: the filter
    `e` keeps what was typed into a field.
    """
    return visible(value) if type(value) is str else value


class Renderer:
    """The templates of the console."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_finalized,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            size=size_text,
            count=count_text,
            counted=partial(counted, thousands=","),
            rate=rate_text,
            duration=duration_text,
            time=time_text,
            path=lambda text: quote(str(text), safe=""),
        )
        self._environment.globals.update(query=query_text, sources=CONFIG_SOURCES)

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        return self._environment.get_template(template).render(values)
