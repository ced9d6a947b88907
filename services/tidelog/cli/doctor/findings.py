"""The findings of a check: its state, one line, and the next step. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

ALL_WELL: Final = 0
WARNINGS: Final = 1
FAILURES: Final = 2
COULD_NOT_LOOK: Final = 3
"""The exit codes of `tidelog doctor`."""

SHOWN_OF_A_CHECK: Final = 20
"""The number of findings of one check that are shown."""


class State(StrEnum):
    """The state of a check. UNKNOWN means that it was not made; the finding then states the reason."""

    FAIL = "fail"
    WARN = "warn"
    OK = "ok"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `next_step` is empty if there is nothing to do."""

    check: str
    state: State
    text: str
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Unseen:
    """Stands for facts that could not be read, with the reason."""

    reason: str
    next_step: str = ""


def not_checked(check: str, unseen: Unseen) -> Finding:
    return Finding(check, State.UNKNOWN, f"not checked: {unseen.reason}", unseen.next_step)


def exit_code(findings: Collection[Finding]) -> int:
    """Returns the code of the worst finding. Checks that were not made count only if none was made."""
    states = {finding.state for finding in findings}
    if State.FAIL in states:
        return FAILURES
    if State.WARN in states:
        return WARNINGS
    return ALL_WELL if State.OK in states else COULD_NOT_LOOK


def shortened(findings: list[Finding]) -> list[Finding]:
    """Returns the findings of one check, the worst first, and no more than SHOWN_OF_A_CHECK."""
    ordered = worst_first(findings)
    rest = ordered[SHOWN_OF_A_CHECK:]
    if not rest:
        return ordered
    more = Finding(rest[0].check, rest[0].state, f"{len(rest)} more findings are not shown")
    return [*ordered[:SHOWN_OF_A_CHECK], more]


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    order = list(State)
    return sorted(findings, key=lambda finding: order.index(finding.state))
