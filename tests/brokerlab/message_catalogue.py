"""All generated messages with their versions."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from tidelog.wire import codec
from tidelog.wire.api_keys import API_SPECS
from tidelog.wire.messages import records
from tidelog.wire.schema import Message


def payload_classes() -> list[type[Message]]:
    """Returns the requests and responses of all APIs."""
    return [of(key) for key in API_SPECS for of in (codec.request_class, codec.response_class)]


def record_classes() -> list[type[Message]]:
    """Returns the keys and values of internal topics and the data of the consumer protocol."""
    modules = [
        importlib.import_module(f"{records.__name__}.{m.name}")
        for m in pkgutil.iter_modules(records.__path__)
    ]
    return [found for module in modules for found in messages_in(module)]


def messages_in(module: ModuleType) -> list[type[Message]]:
    return [found for found in vars(module).values() if hasattr(found, "VERSIONS")]


def versions_of(message: type[Message]) -> range:
    first, last = message.VERSIONS
    return range(first, last + 1)
