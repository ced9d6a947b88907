"""For all tests: with REQUIRE_ALL=1 nothing optional may be missing, so a skipped test is a failed one."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

# A busy machine must not fail a property by being slow; pytest-timeout bounds the whole. CI tries the same
# examples each time, so that a change fails for what it changed; everyone else looks for new ones.
settings.register_profile("tidelog", deadline=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("tidelog"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "tidelog")


def _skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if os.environ.get("REQUIRE_ALL") == "1" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"REQUIRE_ALL=1 turns this skip into a failure: {_skip_reason(report)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if os.environ.get("REQUIRE_ALL") == "1" and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"REQUIRE_ALL=1 turns this skip into a failure: {_skip_reason(report)}"
    return report
