"""Applications find all exceptions of the clients in one module."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

import tidelog.aio
from tidelog.client import errors, exceptions
from tidelog.client.core import delivery_errors


@pytest.mark.parametrize("module", [errors, delivery_errors])
def test_every_exception_is_public(module: ModuleType) -> None:
    made = {
        name
        for name, each in inspect.getmembers(module, inspect.isclass)
        if issubclass(each, Exception) and each.__module__ == module.__name__
    }
    assert made and made <= set(exceptions.__all__)


def test_both_packages_have_the_module() -> None:
    assert tidelog.aio.exceptions is exceptions
    assert all(hasattr(exceptions, name) for name in exceptions.__all__)
