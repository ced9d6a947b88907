"""The import graph tool finds cycles and leaves out the arrows that longer paths imply."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[3] / "tools" / "imports"


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    monkeypatch.delitem(sys.modules, "graph", raising=False)
    import graph

    return graph


def test_cycles_are_the_strongly_connected_components_of_several_modules(graph) -> None:
    imports = {
        "a": {"b"},
        "b": {"c", "d"},
        "c": {"a"},
        "d": {"e"},
        "e": {"d", "f"},
        "f": set(),
    }
    assert graph.find_cycles(imports) == [["d", "e"], ["a", "b", "c"]]


def test_a_module_that_reaches_a_cycle_is_not_in_it(graph) -> None:
    assert graph.find_cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c"]]


def test_imports_for_types_count(graph) -> None:
    imports = graph.import_graph()
    assert "tidelog.settings.cluster_settings" in imports["tidelog.tracing.tracer"]


def test_an_arrow_that_a_longer_path_implies_is_left_out(graph) -> None:
    assert graph.without_shortcuts({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {
        "a": {"b"},
        "b": {"c"},
        "c": set(),
    }


def test_modules_are_counted_by_the_package_under_the_root(graph) -> None:
    imports = {
        "tidelog": set(),
        "tidelog.a.x": {"tidelog.a.y", "tidelog.b"},
        "tidelog.a.y": set(),
        "tidelog.b": {"tidelog"},
    }
    assert graph.package_graph(imports) == {"a": {"b"}, "b": set()}


def test_labs_do_not_import_each_other_in_a_circle(graph) -> None:
    labs = graph.lab_graph()
    assert labs["chaoslab"] > {"brokerlab", "clusterlab"}
    assert graph.find_cycles(labs) == []
