"""Functions that plant one anomaly each into a history of `chaoslab.list_model`.

Each returns False if the history has no place for its anomaly.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

from chaoslab import checker
from chaoslab import transaction_checks as transactional
from chaoslab.history import (
    ABORTED,
    ACKNOWLEDGED,
    COMMITTED,
    History,
    Poll,
    Send,
    Transaction,
    TransactionRead,
)
from chaoslab.list_model import GROUP, READER, TOPIC

Plant = Callable[[History, random.Random], bool]


def _log(history: History, records: int) -> list[Poll]:
    """Returns the final records of a partition that has at least this number of them, else []."""
    logs: dict[int, list[Poll]] = defaultdict(list)
    for poll in history.final:
        logs[poll.partition].append(poll)
    return next((log for log in logs.values() if len(log) >= records), [])


def _of(history: History, outcome: str) -> list[str]:
    return [transaction.name for transaction in history.transactions if transaction.outcome == outcome]


def _sends_of(history: History, transaction: str) -> list[Send]:
    return [send for send in history.sends if send.transaction == transaction]


def _read(transaction: str, record: Poll | Send) -> TransactionRead:
    return TransactionRead(
        *(transaction, transaction.split("#")[0], record.topic, record.partition, record.offset),
        *(record.key, record.number, 1_000.0),
    )


def _end(history: History, partition: int) -> int:
    return 1 + max(
        [send.offset for send in history.sends if send.partition == partition]
        + [poll.offset for poll in history.final if poll.partition == partition],
        default=-1,
    )


def _append(history: History, process: str, transaction: str, partition: int, number: int, gap: int) -> None:
    """Stores and shows a record `gap` offsets behind the end of the partition."""
    key, offset = f"{process}.planted{partition}.{number}", _end(history, partition) + gap
    history.sends.append(
        Send(
            *(process, TOPIC, partition, key, number, ACKNOWLEDGED, offset),
            *(1_000.0, 1_000.5, transaction),
        )
    )
    for readers, reader, group in (
        (history.polls, READER, GROUP),
        (history.final, "final", "final"),
    ):
        readers.append(
            Poll(reader, group, 1, TOPIC, partition, offset, key, number, True, 1_001.0),
        )


# -- anomalies of records and readers


def lose(history: History, chance: random.Random) -> bool:
    if not history.final:
        return False
    lost = chance.choice(history.final)
    history.final.remove(lost)
    return True


def duplicate(history: History, chance: random.Random) -> bool:
    if not history.final:
        return False
    again = chance.choice(history.final)
    history.final.append(again._replace(offset=_end(history, again.partition)))
    return True


def never_show(history: History, chance: random.Random) -> bool:
    if not history.polls:
        return False
    history.polls.remove(chance.choice(history.polls))
    return True


def pass_over(history: History, chance: random.Random) -> bool:
    if not (log := _log(history, 3)):
        return False
    middle = chance.choice(log[1:-1])
    history.polls = [
        poll for poll in history.polls if (poll.partition, poll.offset) != (middle.partition, middle.offset)
    ]
    return True


def go_back(history: History, chance: random.Random) -> bool:
    if not history.polls:
        return False
    history.polls.append(chance.choice(history.polls))
    return True


def swap_in_the_log(history: History, chance: random.Random) -> bool:
    """Stores two records of a key in the other order, and shows them so."""
    keys: dict[str, list[int]] = defaultdict(list)
    for poll in history.final:
        keys[poll.key].append(poll.number)
    pairs = [(key, numbers) for key, numbers in keys.items() if len(numbers) > 1]
    if not pairs:
        return False
    key, numbers = chance.choice(pairs)
    first, second = sorted(chance.sample(numbers, 2))
    swapped = {first: second, second: first}
    for reads in (history.polls, history.final):
        reads[:] = [
            poll._replace(number=swapped.get(poll.number, poll.number)) if poll.key == key else poll
            for poll in reads
        ]
    return True


def show_something_else(history: History, chance: random.Random) -> bool:
    if not history.polls:
        return False
    at = chance.randrange(len(history.polls))
    history.polls[at] = history.polls[at]._replace(number=history.polls[at].number + 1)
    return True


def show_aborted(history: History, chance: random.Random) -> bool:
    sends = [send for name in _of(history, ABORTED) for send in _sends_of(history, name)]
    if not sends:
        return False
    shown = chance.choice(sends)
    history.polls.append(
        Poll("tail", "tail", 0, TOPIC, shown.partition, shown.offset, shown.key, shown.number, True, 0.0)
    )
    return True


# -- anomalies of transactions


def skip_within(history: History, chance: random.Random) -> bool:
    log = _log(history, 3)
    if not log:
        return False
    first = chance.randrange(len(log) - 2)
    history.reads += [_read("q#1", log[first]), _read("q#1", log[first + 2])]
    return True


def go_back_within(history: History, chance: random.Random) -> bool:
    log = _log(history, 2)
    if not log:
        return False
    first = chance.randrange(len(log) - 1)
    history.reads += [_read("q#1", log[first + 1]), _read("q#1", log[first])]
    return True


def swap_within(history: History, chance: random.Random) -> bool:
    """Sends two records of a transaction to one partition in the other order."""
    pairs = [
        (first, second)
        for name in _of(history, COMMITTED)
        for first, second in zip(_sends_of(history, name), _sends_of(history, name)[1:], strict=False)
        if first.partition == second.partition
    ]
    if not pairs:
        return False
    first, second = chance.choice(pairs)
    at, behind = history.sends.index(first), history.sends.index(second)
    history.sends[at], history.sends[behind] = second, first
    return True


def read_its_own(history: History, chance: random.Random) -> bool:
    sends = [send for send in history.sends if send.transaction]
    if not sends:
        return False
    own = chance.choice(sends)
    history.reads.append(_read(own.transaction, own))
    return True


def read_aborted(history: History, chance: random.Random) -> bool:
    sends = [send for name in _of(history, ABORTED) for send in _sends_of(history, name)]
    readers = _of(history, COMMITTED)
    if not sends or not readers:
        return False
    history.reads.append(_read(chance.choice(readers), chance.choice(sends)))
    return True


def read_too_early(history: History, chance: random.Random) -> bool:
    """Shows the first record of a transaction before the last one is sent."""
    written = [sends for name in _of(history, COMMITTED) if len(sends := _sends_of(history, name)) > 1]
    if not written:
        return False
    sends = chance.choice(written)
    for at, poll in enumerate(history.polls):
        if (poll.key, poll.number) == (sends[0].key, sends[0].number):
            history.polls[at] = poll._replace(at_s=sends[-1].sent_at_s - 0.1)
    return True


def cross_writes(history: History, _chance: random.Random) -> bool:
    """Appends two transactions of one process, whose order differs between the partitions."""
    for partition, order in ((0, (1, 2)), (1, (2, 1))):
        for number in order:
            _append(history, "q", f"q#{number}", partition, number, 0)
    history.transactions += [Transaction(f"q#{n}", COMMITTED, 999.0, 1_002.0) for n in (1, 2)]
    return True


def cross_reads(history: History, _chance: random.Random) -> bool:
    """Appends two transactions of two processes that received each other's record."""
    for number in (1, 2):
        _append(history, f"q{number}", f"q{number}#1", 0, number, 0)
        history.transactions.append(Transaction(f"q{number}#1", COMMITTED, 999.0, 1_002.0))
    first, second = history.final[-2:]
    history.reads += [_read("q1#1", second), _read("q2#1", first)]
    return True


def interleave_writes(history: History, _chance: random.Random) -> bool:
    """Appends two transactions of two processes, whose order differs between the partitions."""
    for partition, order in ((0, (1, 2)), (1, (2, 1))):
        for number in order:
            _append(history, f"q{number}", f"q{number}#1", partition, number, 0)
    history.transactions += [Transaction(f"q{n}#1", COMMITTED, 999.0, 1_002.0) for n in (1, 2)]
    return True


def write_between(history: History, _chance: random.Random) -> bool:
    """Appends a transaction of two records with another record between them."""
    for process, transaction, number in (("q", "q#1", 1), ("r", "", 2), ("q", "q#1", 3)):
        _append(history, process, transaction, 0, number, 0)
    history.transactions.append(Transaction("q#1", COMMITTED, 999.0, 1_002.0))
    return True


FAULTS: Final[Mapping[Plant, str]] = {
    lose: checker.LOST_WRITE,
    duplicate: checker.DUPLICATE,
    never_show: checker.UNSEEN,
    pass_over: checker.POLL_SKIP,
    go_back: checker.NONMONOTONIC_POLL,
    swap_in_the_log: checker.NONMONOTONIC_SEND,
    show_something_else: checker.INCONSISTENT_OFFSETS,
    show_aborted: checker.ABORTED_READ,
    skip_within: transactional.INT_POLL_SKIP,
    go_back_within: transactional.INT_NONMONOTONIC_POLL,
    swap_within: transactional.INT_NONMONOTONIC_SEND,
    read_its_own: transactional.PRECOMMITTED_READ,
    read_aborted: transactional.G1A,
    read_too_early: transactional.G1B,
    cross_writes: transactional.G0,
    cross_reads: transactional.G1C,
}
PERMITTED: Final[Mapping[Plant, str]] = {
    interleave_writes: transactional.G0,
    write_between: transactional.INT_SEND_SKIP,
}
