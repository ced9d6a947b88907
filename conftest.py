"""Rules for all tests: Hypothesis profiles, optional packages, and REQUIRE_ALL=1.

`make setup` installs only what tidelog and most tests need. A test module under a path of EXTRA_OF_PATH needs
the packages of a further extra, and is skipped where they are missing. With REQUIRE_ALL=1, which CI sets,
nothing optional may be missing: a skipped test fails.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["tidelog.testing.plugin"]
ROOT = Path(__file__).parent
PACKAGES_OF_EXTRA = {
    "check": ("grimp",),
    "lab": ("kubernetes", "chaoslib", "matplotlib", "yaml", "jsonschema"),
    "pipeline": ("pyspark", "pyarrow", "pandas", "fastavro"),
}
EXTRA_OF_PATH = {
    "tests/chart": "lab",
    "tests/integration/chaos": "lab",
    "tests/integration/cluster/test_chaos_load.py": "lab",
    "tests/observability": "lab",
    "tests/unit/cli/kubernetes": "lab",
    "tests/unit/pipeline": "pipeline",
    "tests/unit/tools/test_import_graph.py": "check",
}

# pytest-timeout bounds a test as a whole, so a busy machine cannot fail a property by being slow. CI tries
# the same examples each time, so that a change fails only for its own faults; other runs try new ones.
settings.register_profile("full", deadline=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("full"), derandomize=True)
settings.register_profile("short", settings.get_profile("full"), max_examples=20)
settings.load_profile("ci" if os.environ.get("CI") else "full")


class SkippedModule(pytest.Module):
    """A test module whose packages are not installed. It is not imported."""

    reason = ""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        pytest.skip(self.reason, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    for path, extra in EXTRA_OF_PATH.items():
        if module_path.is_relative_to(ROOT / path):
            missing = [name for name in PACKAGES_OF_EXTRA[extra] if importlib.util.find_spec(name) is None]
            if missing:
                module: SkippedModule = SkippedModule.from_parent(parent, path=module_path)
                module.reason = f"{', '.join(missing)} not installed: make {extra}-setup"
                return module
    return None


def _skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("REQUIRE_ALL") == "1" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"REQUIRE_ALL=1 turns this skip into a failure: {_skip_reason(report)}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped(report)
    return report
