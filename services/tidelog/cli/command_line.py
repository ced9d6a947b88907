"""Starts and ends any command.

A group imports a subcommand only when it is used, so that every command starts fast. Ctrl-C and SIGTERM let a
command clean up, say why it ended, and end with the exit code of a shell. A standard output that fails,
because a disk is full or nobody reads a pipe, ends it with one line.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
from click.shell_completion import CompletionItem

from tidelog.process.command_help import SuggestingGroup

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
END_LIMIT_S: Final = 10.0
"""The time that a commit and a goodbye have after the first Ctrl-C."""
HURRY_S: Final = 0.5
"""The time of each further step of an end that takes too long."""
_OTHERS: Final = "Other commands"


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


class LazyGroup(SuggestingGroup):
    """A group of commands.

    `places` maps each subcommand to its click command, as `package.module:name`. `sections` arranges the
    subcommands in the group's help: each section maps names to one line. So the help needs no imports.
    """

    def __init__(
        self,
        *args: Any,  # of click.Group
        places: Mapping[str, str],
        sections: Mapping[str, Mapping[str, str]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._places = places
        self.sections = sections or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self._places.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Returns subcommands without importing them, and options."""
        lines = {name: line for section in self.sections.values() for name, line in section.items()}
        found = [
            CompletionItem(name, help=lines.get(name))
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not self.sections:
            super().format_commands(ctx, formatter)
            return
        arranged = {name for section in self.sections.values() for name in section}
        others = {
            name: found.get_short_help_str()
            for name in self.list_commands(ctx)
            if name not in arranged and (found := self.get_command(ctx, name)) is not None
        }
        for title, section in {**self.sections, _OTHERS: others}.items():
            rows = [(name, line) for name, line in section.items() if name in self._places]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=20)


class OutputError(Exception):
    """A failed write to standard output.

    It is not an OSError, because commands report those as errors of their own files.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output can't be written: {error.strerror}")
        self.is_closed_pipe = error.errno == errno.EPIPE


class _Output(io.FileIO):
    """The file of standard output, whose errors differ from those of other files. After the first error, it
    discards what buffers still hold.
    """

    has_failed = False

    def write(self, data: ReadableBuffer) -> int:
        size_bytes = memoryview(data).nbytes
        if self.has_failed or not size_bytes:  # click examines streams with empty writes and ignores errors
            return size_bytes
        try:
            return super().write(data)
        except OSError as error:
            self.has_failed = True
            raise OutputError(error) from error


@contextlib.contextmanager
def reported_output_errors() -> Iterator[None]:
    """Ends the process with one line if its standard output can't be written, now or when its buffers are
    written at the end. It ends without a line if nobody reads the pipe any more, as in
    `tidelog topic list | head -1`.

    If something else has replaced standard output, as tests do, this changes nothing.
    """
    before = sys.__stdout__
    if before is None or sys.stdout is not before:
        yield
        return
    file = _Output(before.fileno(), "wb", closefd=False)
    sys.stdout = io.TextIOWrapper(
        file if before.write_through else io.BufferedWriter(file),  # as Python does
        before.encoding,
        before.errors,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OutputError as error:
        sys.exit(1 if error.is_closed_pipe else f"tidelog: {error}")
    finally:
        sys.stdout = before


def noted(key: str) -> Callable[[click.Context, click.Parameter, object], None]:
    """Returns a callback of click that keeps the value of an option for the running command."""

    def note_value(context: click.Context, _: click.Parameter, value: object) -> None:
        context.meta[key] = value

    return note_value
