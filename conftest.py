"""For all tests: with REQUIRE_ALL=1 nothing optional may be missing, so a skipped test is a failed one."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

# A busy machine must not fail a property by being slow; pytest-timeout bounds the whole.
settings.register_profile("tidelog", deadline=None)
settings.load_profile("tidelog")


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
