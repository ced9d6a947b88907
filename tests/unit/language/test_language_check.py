"""Tests of tools/language/check.py, which finds docstrings that begin with a fragment."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

CHECK = Path(__file__).resolve().parents[3] / "tools/language/check.py"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    """Returns the check as a module; tools/ is not a package."""
    spec = importlib.util.spec_from_file_location("language_check", CHECK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "text",
    [
        "Of a group.",
        "As above.",
        "The same with the name known.",
        "What is due.",
        "Who asked.",
        "Whoever waits for this partition looks again.",
        "Which build this is.",
        "How far groups are behind.",
        "Those that have keys.",
    ],
)
def test_a_fragment_is_found(check: ModuleType, text: str, tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(f'"""Good."""\n\n\ndef f():\n    """{text}\n\n    Further text.\n    """\n')
    assert list(check.fragments(source)) == [check.Fragment(source, 5, text)]


@pytest.mark.parametrize(
    "text",
    [
        "Returns the timers that are due.",
        "The group that owns the offsets.",
        "When the lease ends, the broker stops.",
        "How to add a setting.",
        "Offsets by partition.",
        "Assigns partitions.",
        "Whether the log is compacted.",
    ],
)
def test_a_sentence_or_noun_phrase_passes(check: ModuleType, text: str, tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(f'"""{text}"""\n')
    assert list(check.fragments(source)) == []


def test_docstrings_of_every_kind_are_read(check: ModuleType) -> None:
    tree = ast.parse(
        '"""M"""\nclass C:\n    """C"""\n    x = 1\n    """X"""\n    def f(self):\n        """F"""\n'
    )
    assert sorted(text for _, text in check.docstrings(tree)) == ["C", "F", "M", "X"]


def test_a_directory_over_its_limit_fails(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "one.py").write_text('"""What is due."""\n')
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["check.py"])
    monkeypatch.setattr(check, "LIMITS", {"services": 1})
    assert check.main() == 0
    monkeypatch.setattr(check, "LIMITS", {"services": 0})
    assert check.main() == 1
    assert "services/one.py:1: What is due." in capsys.readouterr().out
