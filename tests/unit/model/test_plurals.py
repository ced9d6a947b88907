"""The plurals of nouns and verbs in messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.text import counted


def test_only_one_thing_is_singular() -> None:
    assert [counted(number, "move") for number in (0, 1, 2)] == ["0 moves", "1 move", "2 moves"]
    assert counted(1, "move", "was", "were") == "1 move was"
    assert counted(0, "move", "was", "were") == "0 moves were"
    assert counted(1_234_567, "dead letter", thousands=",") == "1,234,567 dead letters"


@given(st.integers(min_value=0).filter(lambda number: number != 1))
def test_every_other_number_is_plural(number: int) -> None:
    assert counted(number, "ACL", "is", "are") == f"{number} ACLs are"
