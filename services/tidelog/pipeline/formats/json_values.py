"""Parses JSON text into Python values. The module does no I/O."""

from __future__ import annotations

import json
from typing import NoReturn

from tidelog.pipeline.formats.columns import Fields
from tidelog.pipeline.formats.fitting import Misfit, finite, kind_of


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=finite)


def read_json(value: bytes) -> Fields:
    """Parses one object. Raises Misfit."""
    try:
        found = _DECODER.decode(value.decode())
    except UnicodeDecodeError as error:
        raise Misfit(f"is not JSON: invalid UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise Misfit(f"is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise Misfit("is JSON that is too deeply nested") from None
    except ValueError as error:
        raise Misfit(f"is not JSON: {error}") from None
    if type(found) is not dict:
        raise Misfit(f"is {kind_of(found)} instead of an object")
    return found
