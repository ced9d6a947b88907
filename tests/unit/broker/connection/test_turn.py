"""At the end of a turn, all calls run first, and then each flush once. An error in one does not stop the
others.
"""

from __future__ import annotations

import asyncio

from tidelog.broker.net.turn import Turn


class Noted:
    def __init__(self, notes: list[str], name: str) -> None:
        self.notes = notes
        self.name = name

    def flush(self) -> None:
        self.notes.append(self.name)


def test_data_of_calls_at_the_end_is_flushed_at_the_same_end() -> None:
    async def scenario() -> list[str]:
        turn, notes = Turn(asyncio.get_running_loop()), []
        first, second = Noted(notes, "first"), Noted(notes, "second")

        def wake() -> None:
            notes.append("wake")
            turn.flush_at_end(second)
            turn.flush_at_end(first)

        turn.flush_at_end(first)
        turn.call_at_end(wake)
        turn.flush_at_end(first)
        await asyncio.sleep(0)
        notes.append("-")
        turn.flush_at_end(second)
        await asyncio.sleep(0)
        return notes

    assert asyncio.run(scenario()) == ["wake", "first", "second", "-", "second"]


def test_a_failing_call_is_reported_and_the_others_run() -> None:
    async def scenario() -> tuple[list[str], list[str]]:
        loop = asyncio.get_running_loop()
        reported: list[str] = []
        loop.set_exception_handler(lambda _, context: reported.append(repr(context["exception"])))
        turn, notes = Turn(loop), []
        turn.call_at_end(lambda: 1 / 0)
        turn.call_at_end(lambda: notes.append("called"))
        turn.flush_at_end(Noted(notes, "flushed"))
        await asyncio.sleep(0)
        return notes, reported

    notes, reported = asyncio.run(scenario())
    assert notes == ["called", "flushed"]
    assert reported == ["ZeroDivisionError('division by zero')"]


def test_calls_made_by_a_call_run_at_the_same_end_and_a_failing_flush_stops_no_other() -> None:
    class Failing:
        def flush(self) -> None:
            raise RuntimeError("a bug")

    async def scenario() -> tuple[list[str], int]:
        loop = asyncio.get_running_loop()
        reported: list[object] = []
        loop.set_exception_handler(lambda _, context: reported.append(context))
        turn, notes = Turn(loop), []
        turn.call_at_end(lambda: turn.call_at_end(lambda: notes.append("called in turn")))
        turn.flush_at_end(Failing())
        turn.flush_at_end(Noted(notes, "flushed"))
        await asyncio.sleep(0)
        return notes, len(reported)

    assert asyncio.run(scenario()) == (["called in turn", "flushed"], 1)
