"""Ends a command at Ctrl-C or SIGTERM: it cleans up, says why it ended, and has the exit code of a shell."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final, NoReturn

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class TerminatedError(KeyboardInterrupt):
    """The end of a command by SIGTERM, which it handles as it handles Ctrl-C."""


def ending_of(error: BaseException) -> tuple[str, int]:
    """Returns the word for the end of a command, and its exit code: 128 and the signal's number."""
    if isinstance(error, TerminatedError):
        return "terminated", 128 + signal.SIGTERM
    return "interrupted", 128 + signal.SIGINT


@contextlib.contextmanager
def raised_terminations() -> Iterator[None]:
    """Lets SIGTERM raise TerminatedError, so that a command cleans up as after Ctrl-C.

    Services handle SIGTERM themselves in their event loop. A process that ignores SIGTERM, or handles it,
    keeps that. Threads other than the main one get no signals.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return
    signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise_terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise TerminatedError


@contextlib.contextmanager
def noted_interruption() -> Iterator[threading.Event]:
    """Yields an event that the first Ctrl-C or SIGTERM sets, so that it can't fall between two steps.

    The second one raises KeyboardInterrupt, which also ends a write to a pipe that nobody reads. Threads
    other than the main one get no signals.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)

    def note_it(number: int, frame: FrameType | None) -> None:
        asked.set()
        restore()

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, note_it)
    try:
        yield asked
    finally:
        restore()
