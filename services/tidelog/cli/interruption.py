"""Ends a command at Ctrl-C or SIGTERM: it cleans up, says why it ended, and has the exit code of a shell."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final, NoReturn

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
END_LIMIT_S: Final = 10.0
"""The time that a commit and a goodbye have after the first Ctrl-C."""
HURRY_S: Final = 0.5
"""The time of each further step of an end that takes too long."""


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

    The second one raises KeyboardInterrupt, and so does the end of END_LIMIT_S. Both repeat it, because each
    step of an end can wait for a broker that does not answer. Threads other than the main one get no signals.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note_it(number: int, frame: FrameType | None) -> None:
        if not asked.is_set():
            asked.set()
            signal.setitimer(signal.ITIMER_REAL, END_LIMIT_S, HURRY_S)
            return
        signal.setitimer(signal.ITIMER_REAL, HURRY_S, HURRY_S)
        raise TerminatedError if number == signal.SIGTERM else KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGALRM)}
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    for number in SIGNALS:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, note_it)
    try:
        yield asked
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
