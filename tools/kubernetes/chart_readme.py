"""Writes the table of values into charts/tidelog/README.md, from the comments of values.yaml.

    chart_readme.py           writes the table
    chart_readme.py --check   compares the table with what it would write; exits with 1 if they differ

The comment directly above a value, beginning with `# --`, describes the value. Every value must have such a
comment or be part of a value that has one, and values.yaml must contain every value that the schema allows,
with its default.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "charts/tidelog"
NAME: Final = "tools/kubernetes/chart_readme.py"
BEGIN: Final = f"<!-- values: written by {NAME} -->"
END: Final = "<!-- values: end -->"
# Values without a default, which come from an umbrella chart.
NOT_IN_VALUES: Final = frozenset({"global"})
_SECTION: Final = re.compile(r"^# === (.+?)(?: \([A-Z, -]+\))? ===$")
_KEY: Final = re.compile(r"^( *)([A-Za-z][A-Za-z0-9]*):(?: |$)")
_BEGINNING: Final = re.compile(r"^ *# -- (.*)$")
_CONTINUATION: Final = re.compile(r"^ *# (.*)$")
_INDENT: Final = 2


class Documented(NamedTuple):
    """A value with its comment. `path` is, for example, `brokers.storage.size`."""

    path: str
    description: str


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare, and do not write")
    check = parser.parse_args().check
    text = (CHART / "values.yaml").read_text("utf-8")
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    problems = problems_of(text, schema)
    for problem in problems:
        sys.stderr.write(f"charts/tidelog/values.yaml: {problem}\n")
    if problems:
        return 1
    readme = CHART / "README.md"
    found = readme.read_text("utf-8")
    wanted = with_table(found, table(text))
    if check and found != wanted:
        sys.stderr.write(f"charts/tidelog/README.md does not match values.yaml: run {NAME}\n")
        return 1
    if not check:
        readme.write_text(wanted, "utf-8")
    return 0


def documented(text: str) -> list[Documented]:
    """Returns all values of values.yaml that have a comment, in order."""
    found: list[Documented] = []
    parents: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        beginning = _BEGINNING.match(line)
        key = _KEY.match(line)
        if beginning:
            comment = [beginning[1]]
        elif comment and (more := _CONTINUATION.match(line)):
            comment.append(more[1])
        elif key:
            depth = len(key[1]) // _INDENT
            parents = [*parents[:depth], key[2]]
            if comment:
                found.append(Documented(".".join(parents), " ".join(comment)))
            comment = []
        else:
            comment = []
    return found


def problems_of(text: str, schema: dict[str, Any]) -> list[str]:
    """Returns the values without a comment, and those that the schema allows but values.yaml lacks."""
    values = yaml.safe_load(text)
    paths = {entry.path for entry in documented(text)}
    problems = [
        f"{path} has no comment that begins with '# --'"
        for path in _leaves(values)
        if not any(path == known or path.startswith(known + ".") for known in paths)
    ]
    absent = (path for path in _allowed(schema, schema) if not _has(values, path))
    return problems + [
        f"{path} is in values.schema.json, but has no default in values.yaml"
        for path in absent
        if path not in NOT_IN_VALUES
    ]


def table(text: str) -> str:
    """Returns one Markdown table for each section of values.yaml."""
    values = yaml.safe_load(text)
    by_section: dict[str, list[Documented]] = {}
    sections = _sections(text)
    for entry in documented(text):
        by_section.setdefault(sections[entry.path.partition(".")[0]], []).append(entry)
    lines: list[str] = []
    for section, entries in by_section.items():
        lines += [f"### {section[0].upper()}{section[1:]}", "", "| value | default | |", "|---|---|---|"]
        lines += [
            f"| `{entry.path}` | {_shown(_at(values, entry.path))} | {_escaped(entry.description)} |"
            for entry in entries
        ]
        lines.append("")
    return "\n".join(lines)


def with_table(readme: str, made: str) -> str:
    """Returns the README with this table. Raises ValueError if the README has no place for it."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"charts/tidelog/README.md: the lines {BEGIN} and {END} are missing")
    return f"{before}{BEGIN}\n\n{made}\n{END}{after}"


def _sections(text: str) -> dict[str, str]:
    """Returns the section that each top-level value is in."""
    found: dict[str, str] = {}
    section = "values"
    for line in text.splitlines():
        if heading := _SECTION.match(line):
            section = heading[1]
        elif (key := _KEY.match(line)) and not key[1]:
            found[key[2]] = section
    return found


def _leaves(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def _allowed(schema: dict[str, Any], part: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yields the paths of all properties, without those of definitions, which are optional."""
    for name, inner in part.get("properties", {}).items():
        yield prefix + name
        if "$ref" not in inner:
            yield from _allowed(schema, inner, f"{prefix}{name}.")


def _has(values: Any, path: str) -> bool:
    for name in path.split("."):
        if not isinstance(values, dict) or name not in values:
            return False
        values = values[name]
    return True


def _at(values: Any, path: str) -> Any:
    for name in path.split("."):
        values = values[name]
    return values


def _shown(value: Any) -> str:
    return f"`{_escaped(json.dumps(value))}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
