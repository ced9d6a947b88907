"""Checks of transactions: the order within one transaction, and cycles among several.

The names are those of Jepsen's Kafka workload and of Adya's phenomena, as Elle finds them. The order of
offsets in a partition is the version order, so a transaction depends on another one

- ww, if its record follows the other one's record in a partition,
- wr, if it received a record of the other one.

| anomaly | meaning |
|---|---|
| int-poll-skip | a transaction skipped a record between two records that it received |
| int-nonmonotonic-poll | a transaction received a record again, or an earlier one |
| int-send-skip * | another record is between two successive records of a transaction |
| int-nonmonotonic-send | two successive records of a transaction are stored in the other order |
| precommitted-read | a transaction received a record of its own |
| G1a | a committed transaction received a record of an aborted one |
| G1b | a reader received a record of a transaction that had more records to send |
| G0 * | transactions depend on each other in a cycle by ww alone |
| G1c * | transactions depend on each other in a cycle with wr |

Transactions do not lock partitions, so Kafka permits int-send-skip, and cycles in which a ww connects two
processes (*). `permitted` returns those, and `faults` all others.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from chaoslab.history import (
    ABORTED,
    ACKNOWLEDGED,
    COMMITTED,
    NO_PLACE,
    UNKNOWN,
    History,
    Poll,
    Send,
    TransactionRead,
)
from chaoslab.verdict import Anomaly

INT_POLL_SKIP: Final = "int-poll-skip"
INT_NONMONOTONIC_POLL: Final = "int-nonmonotonic-poll"
INT_SEND_SKIP: Final = "int-send-skip"
INT_NONMONOTONIC_SEND: Final = "int-nonmonotonic-send"
PRECOMMITTED_READ: Final = "precommitted-read"
G0: Final = "G0"
G1A: Final = "G1a"
G1B: Final = "G1b"
G1C: Final = "G1c"
TRANSACTION_KINDS: Final = (
    INT_POLL_SKIP,
    INT_NONMONOTONIC_POLL,
    INT_SEND_SKIP,
    INT_NONMONOTONIC_SEND,
    PRECOMMITTED_READ,
    G0,
    G1A,
    G1B,
    G1C,
)
WW, WR = "ww", "wr"
Log = tuple[str, int]
Name = tuple[str, str, int]
Graph = Mapping[str, Collection[str]]
"""Maps each node to its successors. A node without successors may be absent."""
MOST_STARTS: Final = 200
"""The number of nodes of a component from which the shortest cycle is searched."""


class _Edge(NamedTuple):
    """A dependency with the place of the later record (ww) or of the received record (wr)."""

    relation: str
    topic: str
    partition: int
    offset: int


Edges = dict[tuple[str, str], _Edge]
"""Maps two transactions, the second of which depends on the first, to their first dependency."""


def faults(history: History) -> list[Anomaly]:
    """Returns the anomalies that a cluster must never cause."""
    index = _Index(history)
    return [
        *_reads_in_order(history, index),
        *_sends_in_order(history, index),
        *_precommitted_reads(history),
        *_aborted_reads(history, index),
        *_intermediate_reads(history, index),
        *_cycles_of(index)[0],
    ]


def permitted(history: History) -> list[Anomaly]:
    """Returns the anomalies that show how transactions interleave, which Kafka permits."""
    index = _Index(history)
    return [*_send_skips(history, index), *_cycles_of(index)[1]]


class _Index:
    """The writers and places of all records, and the processes and outcomes of all transactions."""

    def __init__(self, history: History) -> None:
        self.outcomes = history.outcomes()
        self.process_of = {send.transaction: send.process for send in history.sends if send.transaction}
        self.process_of |= {read.transaction: read.process for read in history.reads}
        self.aborted: dict[Name, str] = {}
        self.writer_of: dict[Name, str] = {}
        """The transaction of each record that is in the log, unless several transactions may have written it.
        """
        places: dict[Name, list[int]] = defaultdict(list)
        for poll in history.final:
            places[_name(poll)].append(poll.offset)
        tries = Counter(_name(send) for send in history.sends if not self._is_aborted(send.transaction))
        for send in history.sends:
            name = _name(send)
            if self._is_aborted(send.transaction):
                if not tries[name]:
                    self.aborted[name] = send.transaction
            elif send.transaction and tries[name] == 1 and len(places[name]) == 1:
                self.writer_of[name] = send.transaction
        self._places = {name: found[0] for name, found in places.items() if len(found) == 1}
        logs: dict[Log, dict[int, str]] = defaultdict(dict)
        for poll in history.final:
            logs[poll.topic, poll.partition][poll.offset] = self.writer_of.get(_name(poll), "")
        self.logs = {log: sorted(records.items()) for log, records in logs.items()}
        """The offset and the writer ("" if there is none) of each record, in order."""
        self._reads = history.reads

    def _is_aborted(self, transaction: str) -> bool:
        return self.outcomes.get(transaction) == ABORTED

    def place_of(self, send: Send) -> int | None:
        """Returns the offset of a record, None if it is unknown."""
        if self.writer_of.get(_name(send)) == send.transaction:
            return self._places[_name(send)]
        return send.offset if send.outcome == ACKNOWLEDGED and send.offset != NO_PLACE else None

    def first_between(
        self, log: Log, before: int, end: int, is_wanted: Callable[[str], bool]
    ) -> tuple[int, str] | None:
        """Returns the first record after `before` and before `end` whose writer is wanted."""
        records = self.logs.get(log, [])
        for at in range(bisect.bisect_left(records, (before + 1, "")), len(records)):
            offset, writer = records[at]
            if offset >= end:
                break
            if is_wanted(writer):
                return offset, writer
        return None

    def dependencies(self) -> tuple[Edges, Edges]:
        """Returns the ww and the wr edges among transactions that were not aborted. A transaction of unknown
        outcome counts if its records are visible.
        """
        orders: Edges = {}
        for (topic, partition), records in self.logs.items():
            last = ""
            for offset, writer in records:
                if writer and last and writer != last:
                    orders.setdefault((last, writer), _Edge(WW, topic, partition, offset))
                last = writer or last
        visible = set(self.writer_of.values())
        reads: Edges = {}
        for read in self._reads:
            writer, reader = self.writer_of.get(_name(read), ""), read.transaction
            if not writer or writer == reader:
                continue
            if self.outcomes.get(reader, UNKNOWN) == COMMITTED or reader in visible:
                reads.setdefault((writer, reader), _Edge(WR, read.topic, read.partition, read.offset))
        return orders, reads


def _name(entry: Send | Poll | TransactionRead) -> Name:
    return (entry.topic, entry.key, entry.number)


# -- one transaction
def _reads_in_order(history: History, index: _Index) -> Iterator[Anomaly]:
    last: dict[tuple[str, Log], int] = {}
    for read in history.reads:
        log = (read.topic, read.partition)
        before = last.get((read.transaction, log))
        last[read.transaction, log] = read.offset
        if before is None:
            continue
        detail = f"{read.transaction} went from {before} to {read.offset}"
        if read.offset <= before:
            yield Anomaly(INT_NONMONOTONIC_POLL, *log, read.offset, detail)
        elif skipped := index.first_between(log, before, read.offset, lambda _: True):
            yield Anomaly(INT_POLL_SKIP, *log, skipped[0], detail)


def _successive_sends(history: History, index: _Index) -> Iterator[tuple[Send, int, int]]:
    """Returns each record of a transaction whose place is known, with that place and the place of the
    transaction's record before it in the same partition.
    """
    last: dict[tuple[str, Log], int] = {}
    for send in history.sends:
        if not send.transaction or (offset := index.place_of(send)) is None:
            continue
        log = (send.topic, send.partition)
        before = last.get((send.transaction, log))
        last[send.transaction, log] = offset
        if before is not None:
            yield send, offset, before


def _sends_in_order(history: History, index: _Index) -> Iterator[Anomaly]:
    for send, offset, before in _successive_sends(history, index):
        if offset <= before:
            detail = f"{send.key} {send.number} of {send.transaction} was sent after the record at {before}"
            yield Anomaly(INT_NONMONOTONIC_SEND, send.topic, send.partition, offset, detail)


def _send_skips(history: History, index: _Index) -> Iterator[Anomaly]:
    for send, offset, before in _successive_sends(history, index):
        own = send.transaction
        skipped = index.first_between(
            (send.topic, send.partition), before, offset, lambda writer, own=own: writer != own
        )
        if skipped:
            detail = f"a record of {skipped[1] or 'no transaction'} is between those of {own}"
            yield Anomaly(INT_SEND_SKIP, send.topic, send.partition, skipped[0], detail)


def _precommitted_reads(history: History) -> Iterator[Anomaly]:
    sent = {(_name(send), send.transaction) for send in history.sends if send.transaction}
    for read in history.reads:
        if (_name(read), read.transaction) in sent:
            detail = f"{read.transaction} received its own {read.key} {read.number}"
            yield Anomaly(PRECOMMITTED_READ, read.topic, read.partition, read.offset, detail)


# -- several transactions
def _aborted_reads(history: History, index: _Index) -> Iterator[Anomaly]:
    for read in history.reads:
        writer = index.aborted.get(_name(read))
        if writer and writer != read.transaction and index.outcomes.get(read.transaction) == COMMITTED:
            detail = f"{read.transaction} received {read.key} {read.number} of {writer}, which was aborted"
            yield Anomaly(G1A, read.topic, read.partition, read.offset, detail)


def _intermediate_reads(history: History, index: _Index) -> Iterator[Anomaly]:
    """Finds records that were received before their transaction sent its last record.

    A reader that received a part of a transaction is no anomaly, because the next poll returns the rest.
    """
    last_sent_s: dict[str, float] = {}
    for send in history.sends:
        last_sent_s[send.transaction] = max(send.sent_at_s, last_sent_s.get(send.transaction, 0.0))
    received: list[tuple[Poll | TransactionRead, str]] = [(poll, poll.reader) for poll in history.polls]
    received += [(read, read.transaction) for read in history.reads]
    for entry, reader in received:
        writer = index.writer_of.get(_name(entry))
        # A time of 0 is unknown.
        if writer and writer != reader and 0.0 < entry.at_s < last_sent_s[writer]:
            detail = f"{reader} received {entry.key} {entry.number} while {writer} was still sending"
            yield Anomaly(G1B, entry.topic, entry.partition, entry.offset, detail)


def _cycles_of(index: _Index) -> tuple[list[Anomaly], list[Anomaly]]:
    """Returns the cycles that Kafka forbids and those that it permits.

    Cycles of wr alone are forbidden, and all cycles among the transactions of one process, because these
    follow each other.
    """
    orders, reads = index.dependencies()
    own = {both: edge for both, edge in (orders | reads).items() if _is_of_one_process(index, both)}
    own_orders = {both: edge for both, edge in own.items() if edge.relation == WW}
    seen: set[frozenset[str]] = set()
    forbidden = [anomaly for edges in (reads, own_orders, own) for anomaly in _cycles(edges, seen)]
    allowed = [anomaly for edges in (orders, reads | orders) for anomaly in _cycles(edges, seen)]
    return forbidden, allowed


def _is_of_one_process(index: _Index, both: tuple[str, str]) -> bool:
    first, second = (index.process_of[transaction] for transaction in both)
    return first == second


def _cycles(edges: Edges, seen: set[frozenset[str]]) -> Iterator[Anomaly]:
    """Returns a shortest cycle of each component whose cycle has not been seen before."""
    graph: dict[str, list[str]] = defaultdict(list)
    for first, second in edges:
        graph[first].append(second)
    for component in components(graph):
        cycle = shortest_cycle(graph, component)
        if frozenset(cycle) in seen:
            continue
        seen.add(frozenset(cycle))
        yield _described(edges, cycle)


def _described(edges: Edges, cycle: Sequence[str]) -> Anomaly:
    nodes = [*cycle, cycle[0]]
    path = [edges[both] for both in itertools.pairwise(nodes)]
    kind = G1C if any(edge.relation == WR for edge in path) else G0
    detail = nodes[0] + "".join(
        f" -{edge.relation} {edge.topic}-{edge.partition}@{edge.offset}-> {node}"
        for edge, node in zip(path, nodes[1:], strict=True)
    )
    first = path[0]
    return Anomaly(kind, first.topic, first.partition, first.offset, detail)


def components(graph: Graph) -> list[list[str]]:
    """Returns the strongly connected components of at least two nodes (Tarjan's algorithm, without recursion
    because a path may be as long as the history).
    """
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
    found: list[list[str]] = []
    work: list[tuple[str, Iterator[str]]] = []

    def enter(node: str) -> None:
        order[node] = lowest[node] = len(order)
        path.append(node)
        on_path.add(node)
        work.append((node, iter(graph.get(node, ()))))

    for root in graph:
        if root not in order:
            enter(root)
        while work:
            node, successors = work[-1]
            successor = next(successors, None)
            if successor is None:
                work.pop()
                if work:
                    above = work[-1][0]
                    lowest[above] = min(lowest[above], lowest[node])
                if lowest[node] == order[node]:
                    component = _taken_from(path, node)
                    on_path.difference_update(component)
                    if len(component) > 1:
                        found.append(component)
            elif successor not in order:
                enter(successor)
            elif successor in on_path:
                lowest[node] = min(lowest[node], order[successor])
    return found


def _taken_from(path: list[str], first: str) -> list[str]:
    """Removes the end of the path from `first` on and returns it."""
    component = []
    while not component or component[-1] != first:
        component.append(path.pop())
    return component


def shortest_cycle(graph: Graph, component: Sequence[str]) -> list[str]:
    """Returns the nodes of the shortest cycle through one of the component's first MOST_STARTS nodes, in
    order and without the repeated first node.
    """
    within = set(component)
    best: list[str] = []
    for start in component[:MOST_STARTS]:
        cycle = _cycle_through(graph, start, within)
        if cycle and (not best or len(cycle) < len(best)):
            best = cycle
    return best


def _cycle_through(graph: Graph, start: str, within: Collection[str]) -> list[str]:
    came_from: dict[str, str] = {}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        for successor in graph.get(node, ()):
            if successor == start:
                cycle = [node]
                while cycle[-1] != start:
                    cycle.append(came_from[cycle[-1]])
                return cycle[::-1]
            if successor in within and successor not in came_from:
                came_from[successor] = node
                waiting.append(successor)
    return []
