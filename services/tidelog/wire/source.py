"""Source text of a Python function, with indentation and the names that it refers to. The writers of decoders
and encoders share it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING
from typing import Any, cast
from uuid import UUID

from tidelog.wire.schema import F, FieldType, Message, Struct


class Source:
    """A function that is being written. `names` becomes its globals."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, object] = {}
        self._depth = 0
        self._counter = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Indents the lines written in this context under `head`."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def new(self, prefix: str) -> str:
        """Returns a name that is not used elsewhere."""
        self._counter += 1
        return f"{prefix}{self._counter}"

    def name_for(self, prefix: str, value: object) -> str:
        """Returns the global name of `value`, always the same one for the same object."""
        for name, known in self.names.items():
            if known is value:
                return name
        name = self.new(prefix)
        self.names[name] = value
        return name

    def struct_method(self, letters: str, method: str) -> str:
        """Returns the global name of `pack` or `unpack_from` for the big-endian format `letters`."""
        name = method + "_" + letters.replace("?", "t")
        if name not in self.names:
            self.names[name] = getattr(struct.Struct(">" + letters), method)
        return name

    def default_of(self, kind: type[Struct], field: F) -> str:
        """Returns an expression for the default value of the field."""
        declared = kind.__dataclass_fields__[field.name]
        if declared.default_factory is not MISSING:
            if declared.default_factory is list:
                return "[]"
            return self.name_for(declared.default_factory.__name__, declared.default_factory) + "()"
        if isinstance(declared.default, UUID):
            return self.name_for("zero_uuid", declared.default)
        return repr(declared.default)

    def compile(
        self, function: str, message: type[Message], version: int, how: str = ""
    ) -> Callable[..., Any]:  # a decoder or an encoder
        """Executes the source and returns its `function`: `decode` or `encode`. Tracebacks name the message
        in place of a file.
        """
        file_name = f"<{function}r of {message.__name__} version {version}{how}>"
        exec(compile("\n".join(self.lines), file_name, "exec"), self.names)
        return cast("Callable[..., Any]", self.names[function])


def array_of(kind: FieldType) -> str | type[Struct] | None:
    """Returns the kind of the elements if `kind` is an array, else None."""
    return kind[0] if isinstance(kind, tuple) else None
