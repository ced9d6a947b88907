"""The tool that makes the README's tables of values."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools/kubernetes/chart_readme.py"

VALUES = """\
# === first part (OWNER) ===

# -- How many.
replicas: 3
storage:
  # -- How large;
  # in bytes | units.
  size: 10Gi
  className: ""
# === second part ===

# -- All in one.
labels:
  a: b
"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chart_readme", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_each_comment_becomes_a_line_with_the_default(tool: ModuleType) -> None:
    assert tool.table(VALUES) == "\n".join(
        [
            "### First part",
            "",
            "| value | default | |",
            "|---|---|---|",
            "| `replicas` | `3` | How many. |",
            '| `storage.size` | `"10Gi"` | How large; in bytes \\| units. |',
            "",
            "### Second part",
            "",
            "| value | default | |",
            "|---|---|---|",
            '| `labels` | `{"a": "b"}` | All in one. |',
            "",
        ]
    )


def test_a_value_without_a_comment_is_named(tool: ModuleType) -> None:
    assert tool.problems_of(VALUES, {}) == ["storage.className has no comment that begins with '# --'"]


def test_every_value_of_the_schema_has_a_default(tool: ModuleType) -> None:
    storage = {"properties": {"size": {}, "className": {}, "iops": {}}}
    problems = tool.problems_of(VALUES, {"properties": {"storage": storage, "global": {}}})
    assert problems[1:] == ["storage.iops is in values.schema.json, but has no default in values.yaml"]


def test_only_the_table_is_replaced(tool: ModuleType) -> None:
    readme = f"before\n{tool.BEGIN}\nold\n{tool.END}\nafter\n"
    assert tool.with_table(readme, "new") == f"before\n{tool.BEGIN}\n\nnew\n{tool.END}\nafter\n"
    with pytest.raises(ValueError, match="are missing"):
        tool.with_table("no place", "new")
