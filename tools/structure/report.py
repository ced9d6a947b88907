"""Measures the size and the shape of the code, and keeps what is too large from growing.

    report.py             prints the table of the targets
    report.py --check     fails if a new part breaks a rule, or if an exception is no longer needed
    report.py --write     writes the exceptions that exist today, and keeps the reasons that are there

The rules: a module has 80 to 600 lines, a class at most 400, a function at most 60 lines and 6 parameters,
and a folder at most 12 entries. Functions do not import, except in commands and package faces. Modules have
no `# --` dividers. exceptions.txt names each part of services/ that breaks a rule, and for some the reason.
The list may only shrink: --check fails for a part that is not on it.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = ROOT / "services" / "tidelog"
TESTS: Final = ROOT / "tests"
EXCEPTIONS: Final = Path(__file__).parent / "exceptions.txt"
GENERATED: Final = frozenset({"generated", "messages", "__pycache__"})

MIN_MODULE_LINES: Final = 80
MAX_MODULE_LINES: Final = 600
MAX_CLASS_LINES: Final = 400
MAX_FUNCTION_LINES: Final = 60
MAX_PARAMETERS: Final = 6
MAX_FOLDER_ENTRIES: Final = 12
FULL_FOLDERS: Final = frozenset({"broker/handlers", "."})
"""The folders that may have any number of entries: one file for a family of APIs, and the packages."""
DOCUMENTED_NAMES: Final = frozenset({"_replace", "_fields", "_asdict", "_make", "_field_defaults", "_exit"})
"""Python documents these names for everyone, so their underscore makes them no private members."""
MANY_FILES: Final = 3
"""A name or value in so many modules counts as one that has several definitions."""

TARGETS: Final = {
    "broker": (30_000, 100),
    "group_coordinator": (15_000, 48),
    "client, aio": (13_500, 45),
    "cli": (13_000, 60),
    "pipeline": (11_000, 60),
    "controller, console, rpc, settings, metadata": (21_000, 90),
}
WHOLE_TARGET: Final = (117_000, 480)
TESTS_TARGET_LINES: Final = 125_000


class Module(NamedTuple):
    """A source file: its path below the package or the tests, its text and its syntax tree."""

    name: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return self.text.count("\n")


class Fault(NamedTuple):
    """A part that breaks a rule: the rule, the part, and how large it is."""

    rule: str
    part: str
    size: int

    @property
    def key(self) -> str:
        return f"{self.rule} {self.part}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare with exceptions.txt")
    parser.add_argument("--write", action="store_true", help="write exceptions.txt")
    arguments = parser.parse_args()
    modules = list(read_modules(PACKAGE))
    found = sorted(faults(modules), key=lambda fault: fault.key)
    if arguments.write:
        reasons = read_exceptions()
        EXCEPTIONS.write_text("".join(f"{fault.key}{_reason(reasons, fault)}\n" for fault in found))
        return 0
    if arguments.check:
        return check(found)
    report(modules, found)
    return 0


def read_modules(directory: Path) -> Iterator[Module]:
    """Yields the modules below a directory, except generated ones."""
    for path in sorted(directory.rglob("*.py")):
        name = path.relative_to(directory)
        if not GENERATED & set(name.parts):
            text = path.read_text()
            yield Module(str(name), text, ast.parse(text))


def faults(modules: list[Module]) -> Iterator[Fault]:
    """Yields the parts of the modules that break a rule."""
    entries: defaultdict[str, set[str]] = defaultdict(set)
    for module in modules:
        path = Path(module.name)
        for folder in path.parents:
            entries[str(folder)].add(path.relative_to(folder).parts[0])
        if path.name not in ("__init__.py", "__main__.py"):
            if module.lines < MIN_MODULE_LINES:
                yield Fault("small-module", module.name, module.lines)
            if module.lines > MAX_MODULE_LINES:
                yield Fault("large-module", module.name, module.lines)
        if any(line.startswith("# --") for line in module.text.splitlines()):
            yield Fault("divider", module.name, 1)
        yield from _faults_in(module.tree, module, "")
    for folder, names in entries.items():
        count = len(names - {"__init__.py", "__main__.py"})
        if count > MAX_FOLDER_ENTRIES and folder not in FULL_FOLDERS:
            yield Fault("full-folder", folder, count)


def _faults_in(node: ast.AST, module: Module, prefix: str) -> Iterator[Fault]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            part = f"{prefix}{child.name}"
            if (lines := _lines(child)) > MAX_CLASS_LINES:
                yield Fault("large-class", f"{module.name}:{part}", lines)
            yield from _faults_in(child, module, f"{part}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            part = f"{module.name}:{prefix}{child.name}"
            if (lines := _lines(child)) > MAX_FUNCTION_LINES:
                yield Fault("long-function", part, lines)
            if (count := _parameters(child)) > MAX_PARAMETERS:
                yield Fault("many-parameters", part, count)
            if imports_late(child) and not _may_import_late(module.name):
                yield Fault("late-import", part, 1)
            yield from _faults_in(child, module, f"{prefix}{child.name}.")
        else:
            yield from _faults_in(child, module, prefix)


def _lines(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Returns the number of parameters without the object. Settings with a default that are passed by name
    count, too, since a reader has to know them.
    """
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in every)


def imports_late(function: ast.AST) -> bool:
    """Returns whether a statement of the function, but not one of a function inside it, imports something."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))
    return False


def _may_import_late(name: str) -> bool:
    return name.startswith("cli/") or name.endswith("__init__.py")


def read_exceptions() -> dict[str, str]:
    """Returns the reason of each exception by its key."""
    lines = EXCEPTIONS.read_text().splitlines() if EXCEPTIONS.exists() else []
    return {key.strip(): reason.strip() for key, _, reason in (line.partition("#") for line in lines) if key}


def _reason(reasons: dict[str, str], fault: Fault) -> str:
    reason = reasons.get(fault.key)
    return f"  # {reason}" if reason else ""


def check(found: list[Fault]) -> int:
    """Prints what differs from the exceptions, and returns the exit code."""
    known = read_exceptions()
    added = [fault for fault in found if fault.key not in known]
    gone = sorted(known.keys() - {fault.key for fault in found})
    lines = [f"{fault.rule}: {fault.part} has {fault.size}. Divide it, or merge it." for fault in added]
    lines += [f"{key} is no exception any more. Remove its line with report.py --write." for key in gone]
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return int(bool(added or gone))


def report(modules: list[Module], found: list[Fault]) -> None:
    """Prints the table of the targets."""
    console = Console(soft_wrap=True)
    table = Table("package", "lines", "files", "target", title="Mass, without generated code")
    for names, (lines, files) in TARGETS.items():
        packages = {name.strip() for name in names.split(",")}
        part = [module for module in modules if module.name.split("/")[0] in packages]
        table.add_row(names, *_size(part), f"{lines:,} / {files}")
    table.add_row("whole", *_size(modules), f"{WHOLE_TARGET[0]:,} / {WHOLE_TARGET[1]}")
    tests = list(read_modules(TESTS))
    table.add_row("tests", *_size(tests), f"{TESTS_TARGET_LINES:,}")
    console.print(table)
    shape = Table("measure", "count", title="Shape of services/")
    for rule, count in sorted(Counter(fault.rule for fault in found).items()):
        shape.add_row(rule, str(count))
    for measure, number in measures(modules, tests).items():
        shape.add_row(measure, str(number))
    console.print(shape)


def _size(modules: list[Module]) -> tuple[str, str]:
    return f"{sum(module.lines for module in modules):,}", str(len(modules))


def measures(modules: list[Module], tests: list[Module]) -> dict[str, int]:
    """Returns the numbers of other things that stand in several places."""
    classes: defaultdict[str, set[str]] = defaultdict(set)
    constants: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    protocols: set[str] = set()
    functions = maxima = 0
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].add(module.name)
                names = [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]
                if "Protocol" in names:
                    protocols.add(node.name)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions += 1
        for name, value in _constants(module.tree):
            constants[name, value].add(module.name)
            maxima += name.startswith("MAX_")
    labs = {module.name.split("/")[0] for module in tests if "/" in module.name}
    return {
        "functions": functions,
        "Protocols": len(protocols),
        "MAX_ constants": maxima,
        f"constants with one value in {MANY_FILES} or more modules": sum(
            len(places) >= MANY_FILES for places in constants.values()
        ),
        f"names of {MANY_FILES} or more classes": sum(
            len(places) >= MANY_FILES for places in classes.values()
        ),
        "labs of the tests": sum(name.endswith("lab") for name in labs),
        "private members that tests touch": sum(_private_accesses(module.tree) for module in tests),
    }


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        if isinstance(target, ast.Name) and re.fullmatch(r"[A-Z][A-Z0-9_]+", target.id) and node.value:
            yield target.id, ast.unparse(node.value)


def _private_accesses(tree: ast.Module) -> int:
    return sum(
        isinstance(node, ast.Attribute)
        and bool(re.match(r"_[a-z]", node.attr))
        and node.attr not in DOCUMENTED_NAMES
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        and not (isinstance(node.value, ast.Attribute) and ast.unparse(node.value).startswith("self._"))
        for node in ast.walk(tree)
    )


if __name__ == "__main__":
    sys.exit(main())
