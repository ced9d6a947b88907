"""Writes the packages of each image to deploy/images, as pins with hashes.

    image_requirements.py           writes requirements.txt, requirements-build.txt and, if Spark is
                                    installed, requirements-spark.txt
    image_requirements.py --check   compares the files with what it would write; exits with 1 if they differ

The services' image holds what tidelog itself and the extras EXTRAS need. The Spark jobs' image adds what the
extra `pipeline` needs. `requirements-build.txt` holds what builds and compiles tidelog's wheel for the
images. The tool follows the metadata of the installed packages and takes versions and hashes
from the constraints files, which also pin the developers' packages.
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
BUILD_REQUIREMENTS: Final = ROOT / "deploy/images/requirements-build.txt"
NAME: Final = "tools/kubernetes/image_requirements.py"
EXTRAS: Final = ("console", "kubernetes", "tracing")
SPARK_EXTRA: Final = "pipeline"
BUILD: Final = ("hatchling", "mypy", "setuptools")
BUILD_CONSTRAINTS: Final = ("constraints.txt", "constraints-check.txt")
CONSTRAINTS: Final = ("constraints.txt", "constraints-lab.txt")
SPARK_CONSTRAINTS: Final = (*CONSTRAINTS, "constraints-pipeline.txt")
# A package that any of these needs is included, since the base image chooses the image's Python.
PYTHONS: Final = ("3.11", "3.12", "3.13")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    wanted = {REQUIREMENTS: requirements_of_image(), BUILD_REQUIREMENTS: requirements_of_build()}
    if _is_installed("pyspark"):
        wanted[SPARK_REQUIREMENTS] = requirements_of_spark_image()
    if not check:
        for path, text in wanted.items():
            path.write_text(text)
        return 0
    wrong = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in wrong:
        sys.stderr.write(f"{path.relative_to(ROOT)} differs from the constraints files: run {NAME}\n")
    return 1 if wrong else 0


def requirements_of_image() -> str:
    """Returns the pins of all packages that the services' image needs, ordered by name."""
    return _requirements(_names_of_image(), *CONSTRAINTS)


def requirements_of_build() -> str:
    """Returns the pins of what builds tidelog's wheel, with the extensions that mypyc compiles."""
    if missing := [name for name in BUILD if not _is_installed(name)]:
        raise SystemExit(f"not installed: {', '.join(missing)}; run make check-setup")
    return _requirements(closure(list(BUILD)), *BUILD_CONSTRAINTS)


def requirements_of_spark_image() -> str:
    """Returns the blocks of packages that the Spark jobs' image needs beyond those of the services' image."""
    roots = _project()["optional-dependencies"][SPARK_EXTRA]
    return _requirements(closure(roots) - _names_of_image(), *SPARK_CONSTRAINTS)


def _names_of_image() -> set[str]:
    project = _project()
    roots = list(project["dependencies"])
    for extra in EXTRAS:
        roots += project["optional-dependencies"][extra]
    missing = [name for root in roots if not _is_installed(name := Requirement(root).name)]
    if missing:
        raise SystemExit(f"not installed: {', '.join(missing)}; run make lab-setup")
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
    return f"# Made by {NAME} from {', '.join(constraints)}.\n{chosen}"


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def closure(roots: list[str]) -> set[str]:
    """Returns the names of all packages that these requirements bring, on any of PYTHONS on Linux."""
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
            continue  # the package is for another Python or another system
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
    """Returns the lines of each package, the pin and its hashes, by canonical name."""
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
