"""Writes deploy/images/requirements.txt: what of constraints.txt the services' image holds.

    image_requirements.py           writes it
    image_requirements.py --check   compares; exit 1 if it is not what it would write

constraints.txt pins everything for developers, too. The image gets what tidelog itself needs and the extras
EXTRAS, followed through the metadata of the packages installed here; versions and hashes stay those of
constraints.txt.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parents[2]
REQUIREMENTS: Final = ROOT / "deploy/images/requirements.txt"
NAME: Final = "tools/kubernetes/image_requirements.py"
EXTRAS: Final = ("kubernetes", "tracing")
# Whatever one of these needs is in: the image's Python is the base image's.
PYTHONS: Final = ("3.11", "3.12", "3.13")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    wanted = requirements_of_image()
    if check:
        found = REQUIREMENTS.read_text() if REQUIREMENTS.exists() else ""
        if found != wanted:
            sys.stderr.write(
                f"{REQUIREMENTS.relative_to(ROOT)} is not what constraints.txt says: run {NAME}\n"
            )
            return 1
        return 0
    REQUIREMENTS.write_text(wanted)
    return 0


def requirements_of_image() -> str:
    """Blocks of constraints.txt, name by name, of all that the image needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    roots = list(project["dependencies"])
    for extra in EXTRAS:
        roots += project["optional-dependencies"][extra]
    names = closure(roots)
    blocks = pinned_blocks((ROOT / "constraints.txt").read_text())
    unpinned = sorted(names - blocks.keys())
    if unpinned:
        raise SystemExit(f"not pinned in constraints.txt: {', '.join(unpinned)}")
    chosen = "".join(blocks[name] for name in sorted(names))
    return f"# Made by {NAME} from constraints.txt.\n{chosen}"


def closure(roots: list[str]) -> set[str]:
    """Names of all packages that these requirements bring, on any of PYTHONS on Linux."""
    todo = [Requirement(root) for root in roots]
    seen: set[tuple[str, frozenset[str]]] = set()
    names: set[str] = set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            needed = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another Python or another system than this one
        names.add(name)
        todo += [found for text in needed if applies(found := Requirement(text), requirement.extras)]
    return names


def applies(requirement: Requirement, extras: set[str]) -> bool:
    if requirement.marker is None:
        return True
    return any(
        requirement.marker.evaluate({"extra": extra, "python_version": python, "sys_platform": "linux"})
        for extra in (extras or {""})
        for python in PYTHONS
    )


def pinned_blocks(constraints: str) -> dict[str, str]:
    """Canonical name -> its lines: the pin and its hashes."""
    blocks: dict[str, str] = {}
    name = ""
    for line in constraints.splitlines(keepends=True):
        begin = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)==", line)
        if begin:
            name = canonicalize_name(begin[1])
        if name:
            blocks[name] = blocks.get(name, "") + line
    return blocks


if __name__ == "__main__":
    sys.exit(main())
