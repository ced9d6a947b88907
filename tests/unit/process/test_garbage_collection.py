"""Full collections of garbage visit only new objects, and the others when the process has grown.

Each test is a process of its own, because the collector belongs to a process.
"""

from __future__ import annotations

import subprocess
import sys

_BEGIN = """
import gc
from tidelog.process import startup

class Node:
    def __init__(self):
        self.next = None

def cycle():
    first, second = Node(), Node()
    first.next, second.next = second, first

gc.disable()  # full collections happen only where the tests ask for them
"""


def run(script: str) -> str:
    """Runs a script after _BEGIN and returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN + script], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_full_collection_leaves_what_earlier_ones_visited() -> None:
    printed = run("""
kept = [Node() for _ in range(50_000)]
startup.bound_collection_pauses()
print(len(gc.get_objects()) < 100)
more = [Node() for _ in range(1_000)]
print(1_000 <= len(gc.get_objects()) < 1_100)
gc.collect()
print(len(gc.get_objects()) < 100)
""")
    assert printed.split() == ["True"] * 3


def test_new_garbage_is_collected() -> None:
    printed = run("""
startup.bound_collection_pauses()
for _ in range(1_000):
    cycle()
print(gc.collect())
""")
    assert int(printed) >= 2_000


def test_frozen_garbage_is_collected_when_the_memory_has_doubled() -> None:
    printed = run("""
blocks = 100
startup.sys.getallocatedblocks = lambda: blocks
startup.MIN_THAW_BLOCKS = 10
startup.bound_collection_pauses()
counts = []
for blocks in (150, 199, 200, 120, 239, 240, 100):
    nodes = [Node() for _ in range(1_000)]
    for node in nodes:
        node.next = node
    if gc.get_freeze_count():
        gc.freeze()  # as if a collection had visited the nodes while they were in use
    del node, nodes
    counts.append(gc.collect() >= 1_000)
print(*counts)
""")
    # The collection that finds the memory grown thaws the objects, and the next one visits them.
    assert printed.split() == ["False", "False", "False", "True", "False", "False", "True"]


def test_the_collector_runs_before_there_is_much_to_visit() -> None:
    printed = run("""
startup.bound_collection_pauses()
most, kept = 0, []
def observe(phase, info):
    global most
    if phase == "start" and info["generation"] == 2:
        most = max(most, len(gc.get_objects()))
gc.callbacks.append(observe)
gc.enable()
for _ in range(100_000):
    kept.append(Node())
print(most)
""")
    assert 0 < int(printed) <= 2 * 20_000
