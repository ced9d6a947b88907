"""JSON text into Python's own values. Pure."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from tidelog.pipeline.formats.fitting import Misfit, finite, kind_of


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=finite)


def read_json(value: bytes) -> dict[str, Any]:
    """One object. Raises Misfit."""
    try:
        found = _DECODER.decode(value.decode())
    except UnicodeDecodeError as error:
        raise Misfit(f"not JSON: no UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise Misfit(f"not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise Misfit("not JSON that can be read: too deeply nested") from None
    except ValueError as error:
        raise Misfit(f"not JSON: {error}") from None
    if type(found) is not dict:
        raise Misfit(f"{kind_of(found)}, not an object")
    return found
