"""A search for cycles in a directed graph. Both functions take linear time for each start."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

Graph = Mapping[str, Collection[str]]
"""Maps each node to its successors. A node without successors may be absent."""
MOST_STARTS: Final = 200
"""The number of nodes of a component from which the shortest cycle is searched."""


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
