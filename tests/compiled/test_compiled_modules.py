"""The compiled modules that pyproject.toml lists avoid the constructs that mypyc rejects or compiles wrongly
(ADR 0020).
"""

from __future__ import annotations

import ast
import os
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from brokerlab.broker_process import BUILD_VARIABLE, tidelog_command

ROOT = Path(__file__).resolve().parents[2]
WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
COMPILED = frozenset(WHEEL["hooks"]["custom"]["modules"])
PURE_CALLS = frozenset({"len", "min", "max"})


@cache
def modules() -> dict[str, ast.Module]:
    """Returns the syntax trees of all modules by dotted name."""
    found = {}
    for package in WHEEL["packages"]:
        root = ROOT / package
        for file in root.rglob("*.py"):
            name = ".".join(file.relative_to(root.parent).with_suffix("").parts)
            found[name] = ast.parse(file.read_text())
    return found


def imported_classes(tree: ast.Module) -> dict[str, str]:
    """Returns the imported names of a module and the modules that define them."""
    return {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def test_every_listed_module_exists() -> None:
    assert set() == COMPILED - modules().keys()


def test_no_compiled_named_tuple_has_a_memoryview() -> None:
    """Importing such a module fails with KeyError: 'memoryview', and no unit test imports compiled code."""
    found = [
        f"{name}.{node.name}"
        for name, tree in modules().items()
        if name in COMPILED
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and "NamedTuple" in map(ast.unparse, node.bases)
        if any(
            "memoryview" in ast.unparse(part.annotation)
            for part in node.body
            if isinstance(part, ast.AnnAssign)
        )
    ]
    assert found == []


def test_no_interpreted_class_derives_from_a_compiled_class() -> None:
    """mypyc rejects such a class, but only when the first object is created."""
    derived = []
    for name, tree in modules().items():
        origins = imported_classes(tree)
        for node in ast.walk(tree):
            if name not in COMPILED and isinstance(node, ast.ClassDef):
                bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                derived += [f"{name}.{node.name}" for base in bases if origins.get(base) in COMPILED]
    assert derived == []


def bounds_that_act(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Slice):
            acts = (
                not (isinstance(part, ast.Call) and ast.unparse(part.func) in PURE_CALLS)
                for part in ast.walk(node)
                if isinstance(part, ast.Call | ast.Await | ast.NamedExpr)
            )
            if any(acts):
                yield f"line {node.lower.lineno if node.lower else 0}: [{ast.unparse(node)}]"


@pytest.mark.parametrize("name", sorted(COMPILED))
def test_bounds_of_slices_have_no_side_effects(name: str) -> None:
    """mypyc 2.4 evaluates the bounds twice if it has no own function for the slice: a follower wrote each
    response to its log twice.
    """
    assert list(bounds_that_act(modules()[name])) == []


def test_processes_run_the_selected_build() -> None:
    told = subprocess.run(
        [*tidelog_command(), "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert ("compiled" in told.stdout) == (BUILD_VARIABLE in os.environ)


def later_classes_in_fields(tree: ast.Module) -> Iterator[str]:
    """Yields the fields of named tuples whose type is a native class that the module defines later."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    tuples = [node for node in classes if "NamedTuple" in map(ast.unparse, node.bases)]
    lines = {node.name: node.lineno for node in classes if node not in tuples}
    for node in tuples:
        for field in node.body:
            if isinstance(field, ast.AnnAssign):
                names = {part.id for part in ast.walk(field.annotation) if isinstance(part, ast.Name)}
                if any(lines.get(name, 0) > node.lineno for name in names):
                    yield f"{node.name}.{ast.unparse(field)}"


@pytest.mark.parametrize("name", sorted(COMPILED))
def test_fields_of_named_tuples_have_types_that_exist(name: str) -> None:
    """mypyc evaluates the types of a named tuple's fields when it makes the class. A native class that the
    module defines later does not exist yet, and the process ends with a segmentation fault.
    """
    assert list(later_classes_in_fields(modules()[name])) == []
