"""The requests of the fuzzer, and its waits for answers."""

from __future__ import annotations

import random
import struct

from fuzz.__main__ import LONGEST_PATIENCE_S, NAMES, PATIENCE, SHORTEST_PATIENCE_S, Patience
from fuzz.mutation import RequestSource


def source(seed: int) -> RequestSource:
    made = RequestSource(random.Random(seed), NAMES, [b"batch"])
    made.fill(40)
    return made


def test_the_damaged_requests_of_a_burst_come_last() -> None:
    """The broker closes the connection at a damaged request and does not handle those behind it."""
    made = source(1)
    valid = {struct.pack(">i", len(payload)) + payload for payload in made.corpus}
    damaged = 0
    for _ in range(50):
        burst = made.burst(8)
        is_valid = [frame in valid for frame in burst]
        assert len(burst) == 8
        first = is_valid.index(False) if False in is_valid else 8
        assert sum(is_valid[first:]) <= 1, "damage may change nothing, but rarely"
        damaged += 8 - first
    assert 100 < damaged < 300


def test_the_same_choices_give_the_same_requests() -> None:
    def sent() -> list[bytes]:
        made = source(1)
        made.choose_by(random.Random(2))
        made.renew(3)
        return made.burst(8)

    assert sent() == sent()


def test_the_wait_for_an_answer_follows_the_usual_time() -> None:
    patience = Patience()
    assert patience.seconds == LONGEST_PATIENCE_S
    for _ in range(200):
        patience.answered(0.002)
    assert abs(patience.seconds - PATIENCE * 0.002) < 0.001
    for _ in range(200):
        patience.answered(0.0)
    assert patience.seconds == SHORTEST_PATIENCE_S
    for _ in range(2_000):
        patience.gave_up()
    assert patience.seconds == LONGEST_PATIENCE_S
