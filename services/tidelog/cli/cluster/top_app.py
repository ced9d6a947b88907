"""The live view of `tidelog top`, built with Textual. One thread asks the brokers, and the view redraws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Footer, Static
from textual.worker import get_current_worker

from tidelog.cli.tool_command import sentence_of
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.model.errors import KafkaError
from tidelog.model.text import printable
from tidelog.observe.cluster_reader import rates_now
from tidelog.observe.number_texts import short, short_duration
from tidelog.observe.rates import COLUMNS, ClusterRates, summary_text

_WIDTHS: Final = {"address": 30, "topic": 40, "group": 40, "type": 8, "state": 20, "uncommitted": 11}
_WIDTH: Final = 10
"""The columns have fixed widths, so that a long name hides no column, and no cell has to be measured."""
_TITLES: Final = {"role": "", "catch-up s": "catch-up"}
_SHORT: Final = frozenset({"disk", "size", "lag", "max lag", "records/s", "bytes/s"})
"""The columns whose numbers may be great."""
_COLUMNS: Final = {
    name: [column.removeprefix("#") for column in columns] for name, columns in COLUMNS.items()
}
MAX_ROWS: Final = 200
"""The number of rows that a table shows. The rows come in the order of their importance."""


class TopApp(App[None]):
    """The view. It shows the last snapshot, and the reason while the brokers can't be asked."""

    TITLE = "tidelog top"
    CSS = """
    #summary { height: auto; padding: 0 1; }
    .title { height: 1; padding: 0 1; text-style: bold; color: $accent; }
    #brokers { height: auto; max-height: 30%; }
    #topics { height: 1fr; }
    #groups { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "Quit"),
        ("p", "pause", "Pause or continue"),
        Binding("ctrl+c", "quit", show=False, system=True, priority=True),
    ]

    def __init__(self, ask: Callable[[ClusterRates | None], ClusterRates], interval_s: float) -> None:
        """`ask` returns what changed since the given rates. It may raise KafkaError and ClientError."""
        super().__init__()
        self._ask_brokers = ask
        self._interval_s = interval_s
        self._last: ClusterRates | None = None
        self._is_paused = False
        self._is_asking = False
        self._summary = "connecting ..."
        self._rows: dict[str, list[tuple[str, ...]]] = {name: [] for name in _COLUMNS}
        """The rows that the tables show."""

    def compose(self) -> ComposeResult:
        yield Static(self._summary, id="summary", markup=False)
        for name in _COLUMNS:
            yield Static(name, classes="title")
            yield DataTable[Text](id=name, cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        for name, columns in _COLUMNS.items():
            for number, column in enumerate(columns):
                title, width = _TITLES.get(column, column), _WIDTHS.get(column, _WIDTH)
                self._table(name).add_column(title, key=f"{name}-{number}", width=width)
        self._refresh()
        self.set_interval(self._interval_s, self._refresh)

    def action_pause(self) -> None:
        self._is_paused = not self._is_paused
        self._summarize(self._summary)
        self._refresh()

    def _refresh(self) -> None:
        """Asks the brokers unless the view is paused or still waits for their answers."""
        if not self._is_paused and not self._is_asking:
            self._is_asking = True
            self._ask()

    @work(thread=True)
    def _ask(self) -> None:
        worker = get_current_worker()
        try:
            rates = self._ask_brokers(self._last)
        except (ClientError, KafkaError) as error:
            if not worker.is_cancelled:
                self.call_from_thread(self._show_error, sentence_of(error))
            return
        if not worker.is_cancelled:
            self.call_from_thread(self.show, rates)

    def _show_error(self, reason: str) -> None:
        self._is_asking = False
        self._summarize(f"The numbers are old: {reason}")

    def _summarize(self, text: str) -> None:
        self._summary = text
        self.query_one("#summary", Static).update(
            f"PAUSED (p continues)  {text}" if self._is_paused else text
        )

    def show(self, rates: ClusterRates) -> None:
        """Shows these rates in all tables."""
        self._is_asking = False
        self._last = rates
        omitted = rates.current.omitted_groups
        more = f", {omitted} more groups" if omitted else ""
        self._summarize(summary_text(rates.summary()) + more)
        for name, rows in rates.tables().items():
            shown = rows if name == "brokers" else rows[:MAX_ROWS]
            self._fill(name, [tuple(map(_cell_text, _COLUMNS[name], row)) for row in shown])

    def _table(self, name: str) -> DataTable[Text]:
        table: DataTable[Text] = self.query_one(f"#{name}", DataTable)
        return table

    def _fill(self, name: str, rows: Sequence[tuple[str, ...]]) -> None:
        """Replaces the cells that have changed. The table stays where the user has scrolled it."""
        table = self._table(name)
        shown = self._rows[name]
        widths = [_WIDTHS.get(column, _WIDTH) for column in _COLUMNS[name]]
        for index, (before, row) in enumerate(zip(shown, rows, strict=False)):
            for number, text in enumerate(row):
                if before[number] != text:
                    table.update_cell_at(Coordinate(index, number), _cell(text, widths[number]))
        for row in rows[len(shown) :]:
            table.add_row(*map(_cell, row, widths))
        for index in range(len(shown) - 1, len(rows) - 1, -1):
            table.remove_row(table.ordered_rows[index].key)
        self._rows[name] = list(rows)


def _cell_text(column: str, value: Any) -> str:  # a cell of `tables`
    if column == "catch-up s":
        return short_duration(value)
    return short(value) if column in _SHORT else "" if value is None else str(value)


def _cell(text: str, width: int) -> Text:
    """Returns a text that is no markup and steers no terminal, and that ends with an ellipsis if it is longer
    than its column.
    """
    text = printable(text)
    return Text(text if len(text) <= width else text[: width - 1] + "\N{HORIZONTAL ELLIPSIS}")


def run_app(cluster: Cluster, topics: Sequence[str], interval_s: float) -> None:
    """Shows the view until the user ends it."""
    TopApp(partial(rates_now, cluster, topics), interval_s).run()
