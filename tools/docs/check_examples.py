"""Checks the types of the Python client's examples, and of the public names of the client and of
`tidelog.testing`, as their users' type checkers do.

    check_examples.py

mypy --strict and pyright check each example of docs/python-client.md, and no example may contain an ignore.
pyright is in its strict mode, except where an example uses a library without types. Then pyright must know
the types of all names that `tidelog.aio`, `tidelog.client` and `tidelog.testing` export. Exits with 1 if
anything is wrong.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = ROOT / "services"
GUIDE: Final = ROOT / "docs" / "python-client.md"
PACKAGES: Final = ("tidelog.aio", "tidelog.client", "tidelog.testing")
UNTYPED: Final = ("to_arrow",)
"""Calls that return objects of libraries without types (PyArrow)."""
IGNORES: Final = re.compile(r"#\s*(?:type:\s*ignore|pyright:)")
PYTHON_VERSION: Final = "3.11"


def main() -> int:
    examples = {
        f"example_{number}.py": text
        for number, text in enumerate(re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL), 1)
    }
    if not examples:
        sys.exit(f"{GUIDE} has no examples")
    ignoring = [name for name, text in examples.items() if IGNORES.search(text)]
    if ignoring:
        sys.exit(f"{GUIDE.name} has examples with an ignore, counted from 1: {', '.join(ignoring)}")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for example, text in examples.items():
            (directory / example).write_text(text)
        results = (
            run_mypy(directory, sorted(examples)),
            run_pyright(directory, examples),
            *(verify_types(directory, package) for package in PACKAGES),
        )
    return int(any(results))


def run_mypy(directory: Path, examples: Sequence[str]) -> int:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary"]
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    return run([*command, *options, *examples], directory)


def run_pyright(directory: Path, examples: Mapping[str, str]) -> int:
    config = {
        "pythonVersion": PYTHON_VERSION,
        "typeCheckingMode": "standard",
        "strict": [name for name, text in examples.items() if not any(call in text for call in UNTYPED)],
    }
    (directory / "pyrightconfig.json").write_text(json.dumps(config))
    return run([sys.executable, "-m", "pyright"], directory)


def verify_types(directory: Path, package: str) -> int:
    """Lets pyright judge a package as an installed one with `py.typed`, but no types of other packages."""
    return run([sys.executable, "-m", "pyright", "--verifytypes", package, "--ignoreexternal"], directory)


def run(command: Sequence[str], directory: Path) -> int:
    """Runs a checker, and prints its output only if it fails. Returns its exit code.

    Both checkers find tidelog in this checkout. pyright looks for other packages in the environment whose
    `python` is the first in PATH.
    """
    environment = {
        **os.environ,
        "MYPYPATH": str(SOURCES),
        "PYTHONPATH": str(SOURCES),
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))),
    }
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
