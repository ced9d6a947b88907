"""State machines: a table of the transitions that are allowed, and the story of one machine.

The states of a thing are the members of an enum. Its `StateTable` says which state may follow which. A reader
learns the life of the thing from one table, and a transition that nobody thought of is an error at once
instead of a wrong answer later. Most owners have the state as a plain attribute, which costs nothing to read:

    self.state = STATES.enter(self.state, GroupState.STABLE)

A `Machine` has a state and remembers how it came there, for things whose state people have to explain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar

State = TypeVar("State", bound=Enum)

STORY_LENGTH: Final = 100
"""The number of transitions that a machine remembers."""


class IllegalTransitionError(Exception):
    """A transition that the table of states does not allow: a bug in the code that asked for it."""


class StateTable(Generic[State]):
    """The states that may follow each state. `thing` names in errors what has the states: "a partition"."""

    __slots__ = ("following", "thing")

    def __init__(self, thing: str, following: Mapping[State, Collection[State]]) -> None:
        self.thing: str = thing
        self.following: Mapping[State, Collection[State]] = following

    def allows(self, before: State, after: State) -> bool:
        """Returns whether `after` may follow `before`."""
        return after in self.following[before]

    def is_final(self, state: State) -> bool:
        """Returns whether no state may follow `state`."""
        return not self.following[state]

    def enter(self, before: State, after: State) -> State:
        """Returns `after`. Raises IllegalTransitionError if it may not follow `before`."""
        if after not in self.following[before]:
            raise IllegalTransitionError(f"{self.thing} that is {before.name} can't become {after.name}")
        return after


class Transition(NamedTuple, Generic[State]):
    """One change of a machine's state. `reason` says in a few words what caused it."""

    at_ms: int
    before: State
    after: State
    reason: str


class Machine(Generic[State]):
    """The state of one thing, and its last transitions, the oldest first.

    `wall_ms` returns the time of day.
    """

    __slots__ = ("_table", "_wall_ms", "state", "story")

    def __init__(self, table: StateTable[State], state: State, wall_ms: Callable[[], int]) -> None:
        self._table = table
        self._wall_ms = wall_ms
        self.state: State = state
        self.story: deque[Transition[State]] = deque(maxlen=STORY_LENGTH)

    def enter(self, state: State, reason: str) -> None:
        """Changes the state. Raises IllegalTransitionError, with nothing changed, if the table does not allow
        that.
        """
        before, self.state = self.state, self._table.enter(self.state, state)
        story = self.story
        story.append(Transition(self._wall_ms(), before, state, reason))
        # Of an attempt that fails again and again, the story keeps the first time and the last.
        if len(story) >= 6 and all(story[-i][1:] == story[-i - 2][1:] == story[-i - 4][1:] for i in (1, 2)):
            del story[-4], story[-3]
