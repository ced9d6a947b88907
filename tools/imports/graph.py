"""Checks the import graph for cycles and draws it in docs/architecture.md.

    python tools/imports/graph.py           write the picture
    python tools/imports/graph.py --check   fail on a cycle, or if the picture is not current

Imports under TYPE_CHECKING count: two modules whose types need each other can only be understood together.
A cycle is a strongly connected component of more than one module. The labs, the packages that tests share, do
not import each other in a circle either.

The check compares the packages and arrows of the picture, not the numbers above it. The numbers are rounded,
because they change with nearly every commit and would make every two branches conflict.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import grimp

ROOT = "tidelog"
REPOSITORY = Path(__file__).resolve().parents[2]
TESTS = REPOSITORY / "tests"
PAGE = REPOSITORY / "docs" / "architecture.md"
BEGIN, END = "<!-- import-graph:begin -->", "<!-- import-graph:end -->"

Graph = dict[str, set[str]]
"""The modules (or packages) that each module (or package) imports."""


def import_graph() -> Graph:
    """Returns the imports between the modules of tidelog."""
    return _imports_within([ROOT])


def lab_graph() -> Graph:
    """Returns the imports between the labs."""
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
    labs: Graph = {path.name: set() for path in TESTS.glob("*lab")}
    for module, imported in _imports_within(labs).items():
        lab = module.split(".")[0]
        labs[lab].update({target.split(".")[0] for target in imported} - {lab})
    return labs


def _imports_within(packages: Iterable[str]) -> Graph:
    graph = grimp.build_graph(*packages, cache_dir=None)
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def find_cycles(graph: Graph) -> list[list[str]]:
    """Returns the strongly connected components of more than one module, the smallest first (Tarjan 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    cycles: list[list[str]] = []
    for root in sorted(graph):
        if root in order:
            continue
        order[root] = lowest[root] = len(order)
        stack.append(root)
        work = [(root, iter(sorted(graph[root])))]
        while work:
            module, imported = work[-1]
            for target in imported:
                if target not in order:
                    order[target] = lowest[target] = len(order)
                    stack.append(target)
                    work.append((target, iter(sorted(graph[target]))))
                    break
                if target in stack:
                    lowest[module] = min(lowest[module], order[target])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[module])
                if lowest[module] == order[module]:
                    start = stack.index(module)
                    component, stack[start:] = sorted(stack[start:]), []
                    if len(component) > 1:
                        cycles.append(component)
    return sorted(cycles, key=lambda cycle: (len(cycle), cycle))


def package_graph(graph: Graph) -> Graph:
    """Returns the imports between the packages directly under tidelog."""
    packages: Graph = {}
    for module, imported in graph.items():
        if module == ROOT:
            continue
        package = module.split(".")[1]
        targets = {target.split(".")[1] for target in imported if target != ROOT}
        packages.setdefault(package, set()).update(targets - {package})
    return packages


def without_shortcuts(graph: Graph) -> Graph:
    """Returns the graph without the arrows that a longer path implies (its transitive reduction).

    The graph must be acyclic.
    """
    reachable: Graph = {}

    def reach(node: str) -> set[str]:
        if node not in reachable:
            reachable[node] = graph[node].union(*(reach(target) for target in graph[node]))
        return reachable[node]

    return {
        node: {
            target for target in targets if not any(target in reach(other) for other in targets - {target})
        }
        for node, targets in graph.items()
    }


def picture(graph: Graph) -> str:
    """Returns the package-level graph as a Mermaid flowchart."""
    packages = package_graph(graph)
    if not find_cycles(packages):
        packages = without_shortcuts(packages)
    arrows = [
        f"    {package} --> {target}" for package in sorted(packages) for target in sorted(packages[package])
    ]
    return "\n".join(["```mermaid", "flowchart TD", *arrows, "```"])


def section(graph: Graph, cycles: list[list[str]]) -> str:
    """Returns the text between the markers."""
    imports = sum(len(targets) for targets in graph.values())
    numbers = (
        f"About {round(len(graph), -1)} modules, about {round(imports, -2)} imports, {len(cycles)} cycles "
        "(imports for types count)."
    )
    return f"{BEGIN}\n{numbers}\n\n{picture(graph)}\n{END}"


def main() -> int:
    """Checks or draws the import graph and returns the exit code."""
    graph = import_graph()
    cycles = find_cycles(graph)
    errors = [_describe(cycle, graph) for cycle in cycles]
    labs = lab_graph()
    errors += [_describe(cycle, labs) for cycle in find_cycles(labs)]
    text = PAGE.read_text()
    if BEGIN not in text or END not in text:
        raise SystemExit(f"{PAGE.name} has no lines {BEGIN} and {END}: add them where the picture belongs")
    start, end = text.index(BEGIN), text.index(END) + len(END)
    if "--check" in sys.argv:
        drawn = re.search(r"```mermaid\n.*?```", text[start:end], re.DOTALL)
        if drawn is None or drawn.group() != picture(graph):
            errors.append(
                f"the import graph in {PAGE.relative_to(REPOSITORY)} is not current: run make import-graph"
            )
    else:
        PAGE.write_text(text[:start] + section(graph, cycles) + text[end:])
    for error in errors:
        print(error, file=sys.stderr)  # noqa: T201
    print(f"{len(graph)} modules, {len(cycles)} cycles")  # noqa: T201
    return 1 if errors else 0


def _describe(cycle: list[str], graph: Graph) -> str:
    within = set(cycle)
    lines = [f"    {module} imports {', '.join(sorted(graph[module] & within))}" for module in cycle]
    return f"import cycle of {len(cycle)} parts:\n" + "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
