"""A correct history, and functions that plant every kind of anomaly into it, for both checkers."""

from __future__ import annotations

from collections.abc import Callable

from chaoslab import verdict as checker
from chaoslab.history import (
    ABORTED,
    ACKNOWLEDGED,
    COMMITTED,
    NO_PLACE,
    NOTHING_COMMITTED,
    UNKNOWN,
    Commit,
    History,
    Poll,
    ReaderPosition,
    Send,
    Transaction,
)

LOG, TXN, COPY = "log", "transactions", "copy"
GROUP, READER = "group", "group.1"


def send(
    topic: str, offset: int, number: int, outcome: str = ACKNOWLEDGED, transaction: str = "", key: str = "k"
) -> Send:
    return Send("p", topic, 0, key, number, outcome, offset, number, number + 0.5, transaction)


def poll(topic: str, offset: int, number: int, reader: str = READER, assignment: int = 1) -> Poll:
    group = GROUP if reader.startswith(GROUP) else reader
    return Poll(reader, group, assignment, topic, 0, offset, "k", number, True, number + 1.0)


def commit(offset: int, began_s: float, outcome: str = ACKNOWLEDGED) -> Commit:
    return Commit(GROUP, LOG, 0, offset, outcome, began_s, began_s + 0.1)


def position(offset: int, began_s: float, assignment: int) -> ReaderPosition:
    return ReaderPosition(f"{GROUP}.2", GROUP, assignment, LOG, 0, offset, began_s, began_s + 0.1)


def sound() -> History:
    """Returns a log of six records, one of them of unknown outcome and stored; its copy, made in two
    transactions, the first of which was aborted; and two transactions of two records, the second of which was
    aborted.
    """
    history = History(audience={GROUP: [LOG, TXN], "tail": [LOG]}, copies={LOG: COPY})
    history.sends = [send(LOG, n, n) for n in range(5)]
    history.sends.append(send(LOG, NO_PLACE, 5, UNKNOWN))
    history.sends += [send(TXN, n, n, transaction="t#1") for n in (0, 1)]
    history.sends += [send(TXN, n, n, transaction="t#2") for n in (3, 4)]
    for name in ("c#1", "c#2"):
        history.sends += [send(COPY, NO_PLACE, n, UNKNOWN, name) for n in range(6)]
    history.transactions = [
        Transaction("t#1", COMMITTED, 0, 1),
        Transaction("t#2", ABORTED, 1, 2),
        Transaction("c#1", ABORTED, 1, 2),
        Transaction("c#2", COMMITTED, 2, 3),
    ]
    history.polls = [poll(LOG, n, n) for n in range(4)]
    # Another member continues at the group's commit, before the last record that the first member received.
    history.commits = [commit(1, 1), commit(3, 2), commit(4, 3, UNKNOWN)]
    history.positions = [
        ReaderPosition(READER, GROUP, 1, LOG, 0, NOTHING_COMMITTED, 0, 0.1),
        position(3, 4, 2),
    ]
    history.polls += [poll(LOG, n, n, f"{GROUP}.2", 2) for n in (3, 4, 5)]
    history.polls += [poll(TXN, n, n) for n in (0, 1)]
    history.polls += [poll(LOG, n, n, "tail") for n in range(6)]
    history.final = [poll(LOG, n, n, "final") for n in range(6)]
    history.final += [poll(TXN, n, n, "final") for n in (0, 1)]
    history.final += [poll(COPY, n + 10, n, "final") for n in range(6)]
    return history


def without(history: History, topic: str, number: int) -> None:
    history.polls = [p for p in history.polls if (p.topic, p.number) != (topic, number)]
    history.final = [p for p in history.final if (p.topic, p.number) != (topic, number)]


def lose_acknowledged(history: History) -> None:
    without(history, LOG, 2)
    without(history, COPY, 2)


def lose_at_the_end(history: History) -> None:
    """Removes the last record, after which nothing was read."""
    history.sends.append(send(LOG, 6, 6))


def lose_committed(history: History) -> None:
    without(history, TXN, 1)


def take_back_what_was_shown(history: History) -> None:
    """Removes a record of unknown outcome that the tailing reader received. It need not be stored, but it was
    shown.
    """
    history.final = [p for p in history.final if p.number != 5]
    history.polls = [p for p in history.polls if p.number != 5 or p.reader == "tail"]
    history.sends = [s for s in history.sends if (s.topic, s.number) != (COPY, 5)]


def leave_out_of_the_copy(history: History) -> None:
    """Removes a record from the copy. The copier never got an acknowledgement for it."""
    without(history, COPY, 4)
    history.sends = [s for s in history.sends if (s.topic, s.number) != (COPY, 4)]


def store_twice(history: History) -> None:
    history.final.append(poll(COPY, 16, 5, "final"))


def acknowledge_one_place_twice(history: History) -> None:
    history.sends[5] = send(LOG, 4, 5)


def show_something_else(history: History) -> None:
    """Shows a reader another record at a place, before the log was truncated there."""
    index = next(i for i, p in enumerate(history.polls) if p.reader == "tail" and p.number == 3)
    history.polls[index] = history.polls[index]._replace(number=5)
    history.audience.pop("tail")


def show_aborted(history: History) -> None:
    history.final.append(poll(TXN, 3, 3, "final"))
    history.polls.append(poll(TXN, 3, 3))


def tear(history: History) -> None:
    history.transactions[0] = Transaction("t#1", UNKNOWN, 0, 1)
    without(history, TXN, 1)


def swap_in_the_log(history: History) -> None:
    swapped = {2: 3, 3: 2}
    for reads in (history.polls, history.final):
        reads[:] = [
            p._replace(number=swapped.get(p.number, p.number)) if p.topic == LOG else p for p in reads
        ]
    history.sends[2:4] = [send(LOG, 3, 2), send(LOG, 2, 3)]


def go_back(history: History) -> None:
    history.polls.append(poll(LOG, 4, 4, f"{GROUP}.2", 2))


def repeat(history: History) -> None:
    history.polls.append(poll(LOG, 5, 5, "tail"))


def pass_over(history: History) -> None:
    """Makes a reader skip a record that another member of the group received."""
    history.polls = [p for p in history.polls if (p.reader, p.topic, p.number) != (READER, LOG, 3)]
    history.polls.append(poll(LOG, 5, 5, READER))
    del history.polls[1]
    history.polls.append(poll(LOG, 1, 1, f"{GROUP}.3", 3))


def start_behind_the_position(history: History) -> None:
    history.polls = [p for p in history.polls if (p.assignment, p.number) != (2, 3)]


def never_show(history: History) -> None:
    history.polls = [p for p in history.polls if (p.reader, p.number) != (f"{GROUP}.2", 5)]


def never_show_the_tail(history: History) -> None:
    history.polls = [p for p in history.polls if (p.reader, p.number) != ("tail", 5)]


def forget_a_commit(history: History) -> None:
    history.positions[1] = history.positions[1]._replace(offset=1)
    history.polls += [poll(LOG, n, n, f"{GROUP}.3", 3) for n in (1, 2)]
    history.polls = [p for p in history.polls if p.assignment != 2]
    history.polls += [poll(LOG, n, n, f"{GROUP}.2", 2) for n in range(1, 6)]


def forget_all_commits(history: History) -> None:
    history.positions.append(position(NOTHING_COMMITTED, 9, 7))


def change_a_value(history: History) -> None:
    history.final[0] = history.final[0]._replace(is_intact=False)


def invent(history: History) -> None:
    history.polls.append(poll(TXN, 9, 99, "stranger"))
    history.final.append(poll(TXN, 9, 99, "final"))
    history.audience[GROUP] = [LOG]


PLANTED: list[tuple[Callable[[History], None], str]] = [
    (lose_acknowledged, checker.LOST_WRITE),
    (lose_at_the_end, checker.LOST_WRITE),
    (lose_committed, checker.LOST_WRITE),
    (take_back_what_was_shown, checker.LOST_WRITE),
    (leave_out_of_the_copy, checker.LOST_WRITE),
    (store_twice, checker.DUPLICATE),
    (acknowledge_one_place_twice, checker.INCONSISTENT_OFFSETS),
    (show_something_else, checker.INCONSISTENT_OFFSETS),
    (show_aborted, checker.ABORTED_READ),
    (tear, checker.TORN_TRANSACTION),
    (swap_in_the_log, checker.NONMONOTONIC_SEND),
    (go_back, checker.NONMONOTONIC_POLL),
    (repeat, checker.NONMONOTONIC_POLL),
    (pass_over, checker.POLL_SKIP),
    (start_behind_the_position, checker.POLL_SKIP),
    (never_show, checker.UNSEEN),
    (never_show_the_tail, checker.UNSEEN),
    (forget_a_commit, checker.STALE_COMMIT),
    (forget_all_commits, checker.STALE_COMMIT),
    (change_a_value, checker.GARBAGE_READ),
    (invent, checker.GARBAGE_READ),
]
