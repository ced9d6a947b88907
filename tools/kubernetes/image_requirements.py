"""Writes what the images hold of the pinned packages, to deploy/images.

    image_requirements.py           writes requirements.txt; with Spark installed requirements-spark.txt
    image_requirements.py --check   compares; exit 1 if they are not what it would write

constraints.txt pins everything for developers, too. The services' image gets what tidelog itself needs and
the extras EXTRAS, followed through the metadata of the packages installed here; the Spark jobs' image gets
what the extra `pipeline` needs beside that. Versions and hashes stay those of constraints.txt and
constraints-pipeline.txt.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parents[2]
REQUIREMENTS: Final = ROOT / "deploy/images/requirements.txt"
SPARK_REQUIREMENTS: Final = ROOT / "deploy/images/requirements-spark.txt"
NAME: Final = "tools/kubernetes/image_requirements.py"
EXTRAS: Final = ("kubernetes", "tracing")
SPARK_EXTRA: Final = "pipeline"
# Whatever one of these needs is in: the image's Python is the base image's.
PYTHONS: Final = ("3.11", "3.12", "3.13")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    wanted = {REQUIREMENTS: requirements_of_image()}
    if _is_installed("pyspark"):
        wanted[SPARK_REQUIREMENTS] = requirements_of_spark_image()
    if not check:
        for path, text in wanted.items():
            path.write_text(text)
        return 0
    wrong = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in wrong:
        sys.stderr.write(f"{path.relative_to(ROOT)} is not what the constraints say: run {NAME}\n")
    return 1 if wrong else 0


def requirements_of_image() -> str:
    """Blocks of constraints.txt, name by name, of all that the services' image needs."""
    return _requirements(_names_of_image(), "constraints.txt")


def requirements_of_spark_image() -> str:
    """Of all that the Spark jobs' image needs beside what is in the services'."""
    roots = _project()["optional-dependencies"][SPARK_EXTRA]
    return _requirements(closure(roots) - _names_of_image(), "constraints.txt", "constraints-pipeline.txt")


def _names_of_image() -> set[str]:
    project = _project()
    roots = list(project["dependencies"])
    for extra in EXTRAS:
        roots += project["optional-dependencies"][extra]
    return closure(roots)


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def _requirements(names: set[str], *constraints: str) -> str:
    blocks: dict[str, str] = {}
    for name in constraints:
        blocks |= pinned_blocks((ROOT / name).read_text())
    unpinned = sorted(names - blocks.keys())
    if unpinned:
        raise SystemExit(f"not pinned in {' or '.join(constraints)}: {', '.join(unpinned)}")
    chosen = "".join(blocks[name] for name in sorted(names))
    return f"# Made by {NAME} from {' and '.join(constraints)}.\n{chosen}"


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


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
