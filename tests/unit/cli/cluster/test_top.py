"""`tidelog top`: its texts, and its view with prepared snapshots."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from textual.widgets import DataTable, Static

from brokerlab.scripted_broker import ScriptedBroker
from tidelog.cli.cluster.command import top as command
from tidelog.cli.cluster.top_app import TopApp, _cell
from tidelog.client.core.cluster_view import Partition
from tidelog.client.errors import UnreachableError
from tidelog.kernel.instants import MonotonicMs
from tidelog.model.topics import TopicPartition
from tidelog.observe.number_texts import short, short_duration
from tidelog.observe.rates import (
    BrokerFacts,
    ClusterRates,
    GroupFacts,
    PartitionFacts,
    Snapshot,
    summary_text,
)

T0 = TopicPartition("flights[x]", 0)  # brackets are markup in Textual


def facts_of(place: TopicPartition, end: int, replicas: tuple[int, ...]) -> PartitionFacts:
    partition = Partition(place.partition, 1, 0, replicas, (1,), ())
    return PartitionFacts(place.topic, partition, high_watermark=end, size_bytes=1_000)


def snapshot(at_ms: int, end: int, committed: int) -> Snapshot:
    return Snapshot(
        MonotonicMs(at_ms),
        "1",
        {1: BrokerFacts("h:1", None, 1_536)},
        {T0: facts_of(T0, end, (1, 2))},
        {"billing": GroupFacts("classic", "Stable", {T0: committed}, uncommitted=2)},
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (0, "0"), (0.25, "0.2"), (42, "42"), (999.4, "999"), (999.5, "1.0 k"), (1_536, "1.5 k"),
        (123_456, "123 k"), (5e6, "5 M"), (7.25e9, "7.2 G"), (1e12, "1 T"), (2e15, "2 P"),
        (-49, "-49"), (-1_536, "-1.5 k"),
    ],
)  # fmt: skip
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0 s"), (59, "59 s"), (90, "1.5 min"), (5_400, "1.5 h"), (129_600, "1.5 d")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert short_duration(seconds) == text


def test_the_summary_names_faults() -> None:
    rates = ClusterRates(snapshot(0, 10, 0), snapshot(1_000, 20, 5))
    assert summary_text(rates.summary()) == (
        "1 broker, controller 1, 1 topic, 1 partition, 1 replica missing, 10 records/s, 0B/s"
    )


def test_the_view_shows_rates_pauses_and_survives_errors() -> None:
    first = ClusterRates(None, snapshot(0, 10, 0))
    answers: Iterator[ClusterRates | UnreachableError] = iter(
        (first, UnreachableError("no connection"), ClusterRates(first.current, snapshot(1_000, 20, 5)))
    )
    asked: list[ClusterRates | None] = []

    def ask(before: ClusterRates | None) -> ClusterRates:
        asked.append(before)
        answer = next(answers)
        if isinstance(answer, UnreachableError):
            raise answer
        return answer

    async def use() -> None:
        app = TopApp(ask, interval_s=3_600)
        async with app.run_test() as pilot:

            async def ask_again() -> str:
                await app.workers.wait_for_complete()
                await pilot.pause()
                return str(app.query_one("#summary", Static).content)

            def rows(name: str) -> list[list[str]]:
                table: DataTable[str] = app.query_one(f"#{name}", DataTable)
                return [list(map(str, table.get_row_at(index))) for index in range(table.row_count)]

            assert "1 replica missing, - records/s" in await ask_again()
            assert rows("groups") == [["billing", "classic", "Stable", "1", "10", "10", "2", "0", "-", "-"]]
            await pilot.press("p", "p")  # pause, and continue at once
            assert "The numbers are old: no connection" in await ask_again()
            assert rows("topics")[0][0] == "flights[x]"
            await pilot.press("p", "p")
            assert "10 records/s" in await ask_again()
            assert rows("groups") == [["billing", "classic", "Stable", "1", "15", "15", "2", "0", "5", "-"]]
            await pilot.press("p")
            summary = str(app.query_one("#summary", Static).content)
            assert summary.startswith("PAUSED") and "10 records/s" in summary
            assert rows("brokers")[1][2] == "dead"
            await pilot.press("q")

    asyncio.run(use())
    assert asked == [None, first, first]


def wide(count: int, end: int, name: str = "t") -> ClusterRates:
    places = [TopicPartition(f"{name}{number:03}", 0) for number in range(count)]
    facts = {place: facts_of(place, end, (1,)) for place in places}
    return ClusterRates(None, Snapshot(MonotonicMs(0), 1, {1: BrokerFacts("h:1", None, 1)}, facts, {}))


def test_a_scrolled_table_stays_where_it_is_and_only_changed_cells_are_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    updates: list[object] = []
    update = DataTable.update_cell_at

    def count(table: DataTable[object], coordinate: object, *given: object, **options: bool) -> None:
        if table.id == "topics":
            updates.append(coordinate)
        update(table, coordinate, *given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(DataTable, "update_cell_at", count)

    async def use() -> None:
        app = TopApp(lambda before: wide(100, 5), interval_s=3_600)
        async with app.run_test(size=(100, 30)) as pilot:
            await app.workers.wait_for_complete()
            await pilot.pause()
            table = app.query_one("#topics", DataTable)
            table.scroll_to(y=40, animate=False)
            await pilot.pause()
            assert table.scroll_y == 40
            app.show(wide(100, 5))
            await pilot.pause()
            assert table.scroll_y == 40 and not updates
            app.show(wide(103, 5))
            assert table.row_count == 103
            app.show(wide(60, 5, "u"))
            await pilot.pause()
            assert [str(row[0]) for row in map(table.get_row_at, range(60))] == [
                f"u{number:03}" for number in range(60)
            ]
            assert table.row_count == 60 and len(updates) == 60

    asyncio.run(use())


def test_a_long_name_hides_no_column() -> None:
    async def use() -> None:
        app = TopApp(lambda before: wide(1, 5, "x" * 200), interval_s=3_600)
        async with app.run_test(size=(130, 30)) as pilot:
            await app.workers.wait_for_complete()
            await pilot.pause()
            table = app.query_one("#topics", DataTable)
            assert str(table.get_row_at(0)[0]) == "x" * 39 + "\N{HORIZONTAL ELLIPSIS}"
            assert table.virtual_size.width <= 130

    asyncio.run(use())


def test_a_pipe_gets_no_live_view() -> None:
    with ScriptedBroker({}) as broker:
        done = CliRunner().invoke(command, ["--bootstrap-server", broker.bootstrap])
    assert done.exit_code == 1
    assert done.stderr == "tidelog: the live view needs a terminal for input and output; use --once\n"


def test_without_textual_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tidelog.cli.cluster.top_app", raising=False)
    monkeypatch.setitem(sys.modules, "textual", None)
    with ScriptedBroker({}) as broker:
        done = CliRunner().invoke(command, ["--bootstrap-server", broker.bootstrap])
    assert done.exit_code == 1
    assert done.stderr == (
        "tidelog: the live view needs the package textual: pip install 'textual>=8', or use --once\n"
    )


def test_a_cell_shows_what_a_terminal_would_obey() -> None:
    """Clients choose the names of groups."""
    assert _cell("a\x1b[2J\nb", 40).plain == "a\\x1b[2J\\nb"
    assert _cell("[bold]x", 40).plain == "[bold]x"
    assert len(_cell("\x1b" * 40, 40).plain) == 40
