"""The live view of `tidelog top`, built with Textual. One thread asks the brokers, and the view redraws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Final

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static
from textual.worker import get_current_worker

from tidelog.cli.tool_command import sentence_of
from tidelog.cli.top_texts import duration_text, short, summary_text
from tidelog.client.cluster import Cluster
from tidelog.client.cluster_rates import ClusterRates
from tidelog.client.cluster_snapshot import rates_now
from tidelog.client.errors import ClientError
from tidelog.model.errors import KafkaError

_COLUMNS: Final = {
    "brokers": ("broker", "address", "", "leaders", "replicas", "missing", "disk", "records/s", "bytes/s"),
    "topics": ("topic", "partitions", "missing", "offline", "size", "records/s", "bytes/s"),
    "groups": ("group", "type", "state", "partitions", "lag", "max lag", "records/s", "catch-up"),
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

    def compose(self) -> ComposeResult:
        yield Static("connecting ...", id="summary", markup=False)
        for name in _COLUMNS:
            yield Static(name, classes="title")
            yield DataTable[str](id=name, cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        for name, columns in _COLUMNS.items():
            for number, column in enumerate(columns):
                self._table(name).add_column(column, key=f"{name}-{number}")
        self._refresh()
        self.set_interval(self._interval_s, self._refresh)

    def action_pause(self) -> None:
        self._is_paused = not self._is_paused
        self.sub_title = "paused" if self._is_paused else ""
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
        self.query_one("#summary", Static).update(f"The numbers are old: {reason}")

    def show(self, rates: ClusterRates) -> None:
        """Shows these rates in all tables."""
        self._is_asking = False
        self._last = rates
        omitted = rates.current.omitted_groups
        more = f", {omitted} more groups" if omitted else ""
        self.query_one("#summary", Static).update(summary_text(rates.summary()) + more)
        self._fill(
            "brokers",
            [
                (
                    str(row.broker_id),
                    row.address,
                    row.role,
                    str(row.leaders),
                    str(row.replicas),
                    str(row.missing_replicas),
                    short(row.disk_bytes),
                    short(row.records_per_s),
                    short(row.bytes_per_s),
                )
                for row in rates.brokers()
            ],
        )
        self._fill(
            "topics",
            [
                (
                    row.topic,
                    str(row.partitions),
                    str(row.missing_replicas),
                    str(row.offline),
                    short(row.size_bytes),
                    short(row.records_per_s),
                    short(row.bytes_per_s),
                )
                for row in rates.topics()[:MAX_ROWS]
            ],
        )
        self._fill(
            "groups",
            [
                (
                    row.group,
                    row.group_type,
                    row.state,
                    str(row.partitions),
                    short(row.lag),
                    short(row.max_lag),
                    short(row.records_per_s),
                    duration_text(row.catch_up_s),
                )
                for row in rates.groups()[:MAX_ROWS]
            ],
        )

    def _table(self, name: str) -> DataTable[str]:
        table: DataTable[str] = self.query_one(f"#{name}", DataTable)
        return table

    def _fill(self, name: str, rows: Sequence[tuple[str, ...]]) -> None:
        """Replaces the rows, and keeps the position of the cursor."""
        table = self._table(name)
        position = table.cursor_row
        table.clear()
        table.add_rows(rows)
        if rows:
            table.move_cursor(row=min(position, len(rows) - 1), animate=False)


def run_app(cluster: Cluster, topics: Sequence[str], interval_s: float) -> None:
    """Shows the view until the user ends it."""
    TopApp(partial(rates_now, cluster, topics), interval_s).run()
