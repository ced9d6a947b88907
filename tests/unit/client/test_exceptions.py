"""Applications find all exceptions of the clients in one module, and can send them to other processes."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import multiprocessing
import pickle
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import pytest

import tidelog
import tidelog.aio
from tidelog.client import errors, exceptions
from tidelog.model.errors import ErrorCode, KafkaError, TidelogError

COLUMNS = "tidelog.records.columns"
NO_PYARROW = importlib.util.find_spec("pyarrow") is None
PACKAGES = ("aio", "client", "model", "records", "sasl", "settings", "testing", "wire")


def subclasses(kind: type[TidelogError]) -> Iterator[type[TidelogError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from subclasses(each)


def all_kinds() -> list[type[TidelogError]]:
    for module in pkgutil.walk_packages(tidelog.__path__, "tidelog."):
        if module.name.split(".")[1] in PACKAGES and not (module.name.startswith(COLUMNS) and NO_PYARROW):
            importlib.import_module(module.name)
    return sorted(set(subclasses(TidelogError)), key=lambda kind: (kind.__module__, kind.__name__))


@pytest.mark.parametrize("module", [errors])
def test_every_exception_is_public(module: ModuleType) -> None:
    made = {
        name
        for name, each in inspect.getmembers(module, inspect.isclass)
        if issubclass(each, Exception) and each.__module__ == module.__name__
    }
    assert made and made <= set(exceptions.__all__)


def test_both_packages_have_the_module() -> None:
    module = importlib.import_module("tidelog.aio.exceptions")
    assert tidelog.aio.exceptions is module
    for name in exceptions.__all__:
        assert getattr(module, name) is getattr(exceptions, name)


@pytest.mark.parametrize("name", sorted(set(exceptions.__all__) - {"ErrorCode"}))
def test_every_public_exception_has_the_base(name: str) -> None:
    assert issubclass(getattr(exceptions, name), TidelogError)


@pytest.mark.parametrize("kind", all_kinds(), ids=lambda kind: kind.__name__)
def test_every_exception_survives_another_process(kind: type[TidelogError]) -> None:
    """Unlike for pickle itself, it does not matter what the constructor takes."""
    error = kind.__new__(kind, "what happened")
    error.__dict__.update(code=ErrorCode.OFFSET_OUT_OF_RANGE, message="what happened", _reason="why")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(other) is kind
        assert (other.args, other.__dict__, str(other)) == (error.args, error.__dict__, str(error))


def refuse(divergent_offset: int) -> None:
    raise errors.LogTruncationError("the log was truncated", divergent_offset)


def test_a_pool_raises_the_exception_of_its_worker() -> None:
    """It waited forever for an exception that could not be unpickled."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        asked = pool.apply_async(refuse, (42,))
        with pytest.raises(errors.LogTruncationError, match="the log was truncated") as caught:
            asked.get(timeout=60)
    assert (caught.value.divergent_offset, caught.value.code) == (42, ErrorCode.OFFSET_OUT_OF_RANGE)


def test_codes_have_the_classes_that_applications_handle() -> None:
    made = errors.request_error(ErrorCode.TOPIC_ALREADY_EXISTS, "topic 't'")
    assert isinstance(made, exceptions.TopicExistsError)
    assert type(errors.request_error(ErrorCode.INVALID_CONFIG, "x")) is KafkaError
