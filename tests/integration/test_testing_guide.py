"""The examples of docs/testing.md run, and the program with the fault is found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

GUIDE = Path(__file__).parents[2] / "docs" / "testing.md"
LOST = [20, 21, 22, 23, 24]


def examples() -> dict[str, str]:
    """Returns the guide's programs by the names in their first lines."""
    blocks = re.findall(r"```python\n# (.*?)\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    return dict(blocks)


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=200, check=False)


def run_pytest(directory: Path, *files: str) -> subprocess.CompletedProcess[str]:
    options = ("-p", "tidelog.testing.plugin", "-p", "no:cacheprovider", "-q", "-vv")
    return run(directory, "-m", "pytest", *options, *files)


def write(directory: Path, **files: str) -> None:
    for name, text in files.items():
        (directory / f"{name}.py").write_text(text)


def test_ten_lines_find_a_consumer_that_loses_records_on_a_rebalance(tmp_path: Path) -> None:
    guide = examples()
    body = guide["test_counter.py"].partition("def ")[2].strip().splitlines()
    assert len(body) <= 10
    write(tmp_path, test_counter=guide["test_counter.py"], counter=guide["counter.py"])
    faulty = run_pytest(tmp_path, "test_counter.py")
    assert faulty.returncode == 1, faulty.stdout + faulty.stderr
    assert "assert [0, 1, 2" in faulty.stdout
    assert f"Right contains {len(LOST)} more items, first extra item: {LOST[0]}" in faulty.stdout
    write(tmp_path, counter=guide["counter.py, repaired"])
    repaired = run_pytest(tmp_path, "test_counter.py")
    assert repaired.returncode == 0, repaired.stdout + repaired.stderr


def test_the_other_examples_run(tmp_path: Path) -> None:
    guide = examples()
    tests = ["test_first.py", "test_leader.py", "test_with_unittest.py", "test_coroutine.py"]
    for name in [*tests, "conftest.py", "without_pytest.py"]:
        (tmp_path / name).write_text(guide[name])
    passed = run_pytest(tmp_path)
    assert passed.returncode == 0, passed.stdout + passed.stderr
    assert f"{len(tests)} passed" in passed.stdout
    assert run(tmp_path, "without_pytest.py").returncode == 0
    assert run(tmp_path, "-m", "unittest", "test_with_unittest").returncode == 0


def test_the_guides_settings_reach_the_broker(tmp_path: Path) -> None:
    write(
        tmp_path,
        conftest=examples()["conftest.py"],
        test_settings=(
            "import pytest\nfrom tidelog.testing import RequestFailedError\n\n"
            "def test_limit(tidelog):\n"
            "    with pytest.raises(RequestFailedError, match='MESSAGE_TOO_LARGE'):\n"
            "        tidelog.produce('flights', b'x' * 200_000)\n"
        ),
    )
    passed = run_pytest(tmp_path)
    assert passed.returncode == 0, passed.stdout + passed.stderr
