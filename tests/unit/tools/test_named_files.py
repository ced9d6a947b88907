"""Documents and docstrings name files that exist, also after files have moved."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_NAMED = re.compile(r"`(?P<path>[\w./-]+\.py)`")
EXAMPLES = {"copy.py", "x_pb2.py", "x_pb2_grpc.py"}
"""Files of readers or generators, which are not in the checkout."""
HISTORY = ("docs/adr/", "CHANGELOG.md")
"""Documents about earlier states of the code."""


def tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "Makefile"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("this is no git checkout")
    return [path for path in listed.stdout.split() if (ROOT / path).exists()]


def test_each_named_file_exists() -> None:
    files = tracked()
    known = {"/" + path for path in files}
    missing = []
    for path in files:
        if path.startswith(HISTORY):
            continue
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            missing += [
                f"{path}:{number} names {found['path']}"
                for found in _NAMED.finditer(line)
                if found["path"] not in EXAMPLES
                and not any(each.endswith("/" + found["path"].lstrip("./")) for each in known)
            ]
    assert not missing, "\n".join(missing)
