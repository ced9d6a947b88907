"""The lines of `tidelog dump-log`: the text of Kafka's tool, or one JSON object for each line. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.cli.json_document import key_of

OMITTED_HEADERS: Final = "omittedHeaders"
_WORD_BEGINS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class DumpLine:
    """A line. `kind` says what it describes, and `fields` have the names of Kafka's tool.

    `text` takes the place of the fields in lines that have none.
    """

    kind: str
    fields: Mapping[str, object]
    prefix: str = ""
    text: str | None = None

    def __str__(self) -> str:
        if self.text is not None:
            return self.prefix + self.text
        return self.prefix + " ".join(_field_text(name, value) for name, value in self.fields.items())

    def as_json(self, path: Path) -> str:
        """Returns the line as an object with the file and the fields, whose names are in snake case."""
        found: dict[str, object] = {"file": str(path), "kind": self.kind}
        if self.text is not None:
            found["text"] = self.text
        found |= {key_of(_WORD_BEGINS.sub(" ", name)): value for name, value in self.fields.items()}
        return json.dumps(found, ensure_ascii=False)


def _field_text(name: str, value: object) -> str:
    if name == OMITTED_HEADERS:
        return f"and {value} more headers"
    if isinstance(value, bool):
        value = "true" if value else "false"
    elif isinstance(value, list):
        value = f"[{','.join(value)}]"
    return f"{name}: {value}"
