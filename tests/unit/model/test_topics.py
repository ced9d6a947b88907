from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.topics import MAX_TOPIC_NAME_LENGTH, TopicPartition, collision_key, topic_name_problem

LEGAL = string.ascii_letters + string.digits + "._-"


@given(
    st.text(LEGAL, min_size=1, max_size=MAX_TOPIC_NAME_LENGTH).filter(lambda name: name not in {".", ".."})
)
def test_names_of_legal_characters_are_legal(name: str) -> None:
    assert topic_name_problem(name) is None


@given(st.text(min_size=1, max_size=20), st.characters(exclude_characters=LEGAL), st.integers(0, 20))
def test_one_illegal_character_makes_a_name_illegal(name: str, other: str, position: int) -> None:
    assert topic_name_problem(name[:position] + other + name[position:]) is not None


@pytest.mark.parametrize("name", ["", ".", "..", "a" * (MAX_TOPIC_NAME_LENGTH + 1), "ok\n", "é"])
def test_illegal_names_are_explained(name: str) -> None:
    problem = topic_name_problem(name)
    assert problem is not None
    assert problem.startswith("Topic name is invalid")


def test_dots_and_underscores_collide() -> None:
    assert collision_key("a.b_c") == collision_key("a_b.c") != collision_key("a-b-c")


def test_a_partition_prints_as_its_directory() -> None:
    assert str(TopicPartition("my-topic", 12)) == "my-topic-12"
