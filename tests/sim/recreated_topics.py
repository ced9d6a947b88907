"""Runs of a producer whose topic is deleted and created again while deliveries time out, on model brokers.

The clusters of the simulator keep their topics. `make sim` makes these runs for each of its seeds, too: they
take milliseconds.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from typing import Final

from brokerlab.model_brokers import TopicNaming
from brokerlab.producer_runs import drawn_faults, run

RUNS_A_NAMING: Final = 8
"""The number of runs of one seed, for each naming of topics."""
RECREATED: Final = 0.05


def failure(seed: int) -> str | None:
    """Returns what is wrong after the runs of a seed, None if nothing is."""
    for number, naming in product(range(RUNS_A_NAMING), TopicNaming):
        name = f"run {number} of seed {seed}"
        chance = random.Random(name)
        faults = replace(drawn_faults(chance), recreated=RECREATED, naming=naming)
        try:
            run(chance.getrandbits(32), faults)
        except AssertionError as error:
            return f"{name}, topics in requests by {naming.name}: {error}"
    return None
