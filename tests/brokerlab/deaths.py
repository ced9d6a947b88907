"""Lets the process die before any one of the operations that change files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import pytest

P = ParamSpec("P")
R = TypeVar("R")

OPERATIONS = ("rename", "replace", "unlink", "fsync", "fdatasync", "truncate", "write", "pwrite", "ftruncate")


class ProcessDied(BaseException):
    """The death of the process; no code handles this exception."""


@contextmanager
def dies_at(monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[list[str]]:
    """Prevents operation `number` of OPERATIONS, and yields the list of those that were requested."""
    seen: list[str] = []

    def counted(name: str, original: Callable[P, R]) -> Callable[P, R]:
        def call(*arguments: P.args, **options: P.kwargs) -> R:
            seen.append(name)
            if len(seen) > number:
                raise ProcessDied(f"{name}{arguments}")
            return original(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(os, name, counted(name, getattr(os, name)))
        yield seen
