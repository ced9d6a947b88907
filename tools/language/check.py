"""Finds docstrings that begin with a fragment instead of a sentence.

    check.py          checks services/, tests/ and tools/; exits with 1 if a directory has more than its limit
    check.py --list   prints every fragment

A docstring that begins with one of these words has no subject, or puts a clause in the place of a noun:
"Of a group", "As above", "The same with the name known", "What is due". Readers have to guess what it
describes. Each of them can be a sentence ("Returns the timers that are due.") or a noun phrase ("The timers
that are due."). Words such as "When", "Where", "For" and "In" are not on the list, because complete sentences
often begin with them ("When the lease ends, ...").
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
FRAGMENT: Final = re.compile(
    r"(?:Of|As|The same|What|Whatever|Who|Whoever|Whom|Whose|Which|How(?! to\b)|Those|That of)\b"
)
# The most fragments that a directory may have. Limits are only ever lowered.
LIMITS: Final = {"services": 0, "tests": 0, "tools": 0}
GENERATED: Final = frozenset({"generated", "messages"})


class Fragment(NamedTuple):
    """A docstring that begins with a fragment: its file, its line there, and its first line."""

    path: Path
    line: int
    text: str


def main() -> int:
    """Prints the fragments of each directory that has more than its limit, and returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print every fragment")
    list_all = parser.parse_args().list
    failed = False
    for directory, limit in LIMITS.items():
        found = [fragment for path in sources(ROOT / directory) for fragment in fragments(path)]
        too_many = len(found) > limit
        failed = failed or too_many
        if too_many or list_all:
            _print(directory, limit, found)
    return int(failed)


def sources(directory: Path) -> Iterator[Path]:
    """Yields the Python files below a directory, except generated ones."""
    return (path for path in sorted(directory.rglob("*.py")) if not GENERATED & set(path.parts))


def fragments(path: Path) -> Iterator[Fragment]:
    """Yields the docstrings of a file that begin with a fragment."""
    for line, text in docstrings(ast.parse(path.read_text("utf-8"), str(path))):
        if FRAGMENT.match(text):
            yield Fragment(path, line, text.splitlines()[0])


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields line and text of each docstring: of modules, classes, functions, and attributes.

    A string that stands alone as a statement documents what precedes it, so every such string counts.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str):
                yield node.lineno, text.strip()


def _print(directory: str, limit: int, found: list[Fragment]) -> None:
    for fragment in found:
        sys.stdout.write(f"{fragment.path.relative_to(ROOT)}:{fragment.line}: {fragment.text}\n")
    words = Counter(match[0] for f in found if (match := FRAGMENT.match(f.text)))
    counts = ", ".join(f"{word} {count}" for word, count in words.most_common())
    sys.stdout.write(
        f"{directory}: {len(found)} docstrings begin with a fragment; at most {limit} may ({counts})\n"
    )


if __name__ == "__main__":
    sys.exit(main())
