"""Measures work so that a test can compare two calls: counts of what the interpreter does, or CPU time."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

ATTEMPTS = 3


def lines_of(work: Callable[[], object], *, file: str | None = None) -> int:
    """Returns how many lines of Python `work` runs, in all files or in one."""
    return _events_of(work, "line", file)


def instructions_of(work: Callable[[], object]) -> int:
    """Returns how many instructions of the interpreter `work` takes. They also show loops within a line."""
    return _events_of(work, "opcode", None)


def calls_of(work: Callable[[], object]) -> int:
    """Returns how many functions `work` calls, in Python and in C. A generator expression calls none."""
    count = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "c_call" or (event == "call" and frame.f_code.co_name != "<genexpr>")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def _events_of(work: Callable[[], object], counted: str, file: str | None) -> int:
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if file is not None and frame.f_code.co_filename != file:
            return None
        frame.f_trace_opcodes = counted == "opcode"
        count += event == counted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def cpu_s(work: Callable[[], object]) -> float:
    """Returns the CPU time of one call, without collections of garbage: these take the longer the more tests
    ran before in this process.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        begun = time.process_time()
        work()
        return time.process_time() - begun
    finally:
        if was_enabled:
            gc.enable()


def least_cpu_s(work: Callable[[], object]) -> float:
    """Returns the shortest CPU time of some calls."""
    return min(cpu_s(work) for _ in range(ATTEMPTS))
