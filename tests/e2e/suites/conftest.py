"""The release that the suites share, on the cluster that `python -m e2e` names in the environment.

Figures and the sum of kills, anomalies and gaps go to the file that OUTCOME names.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import pytest

from e2e.kubectl import Kubectl, KubectlError
from e2e.outcome import Outcome
from e2e.release import Release
from e2e.settings import NAMESPACE, OUTCOME, PREVIOUS_ROOT, PREVIOUS_TAG, RELEASE, SLOWNESS, TAG

collect_ignore_glob: Final = [] if OUTCOME in os.environ else ["test_*.py"]
READY_TIMEOUT_S: Final = 180.0
UNINSTALL_TIMEOUT_S: Final = 120.0
OUTSIDE: Final = {
    "listeners.external.enabled": "true",
    "listeners.external.type": "NodePort",
    "listeners.external.nodePorts.bootstrap": "30494",  # not those of other releases
    "listeners.external.nodePorts.firstBroker": "30495",
}
LOG_LINES: Final = "15"


@pytest.fixture(scope="session")
def slowness() -> float:
    """The factor for time limits, because CI's machine may be slower than the lab's."""
    return float(os.environ.get(SLOWNESS, "1"))


@pytest.fixture(scope="session")
def kubectl() -> Iterator[Kubectl]:
    """A namespace of the suites' own, in which pods must satisfy the restricted standard."""
    found = Kubectl({}, os.environ[NAMESPACE])
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    found.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": found.namespace, "labels": labels}}
    )
    yield found
    found.run("delete", "namespace", found.namespace, "--ignore-not-found", timeout_s=UNINSTALL_TIMEOUT_S)


@pytest.fixture(scope="session")
def outcome() -> Iterator[Outcome]:
    path = Path(os.environ[OUTCOME])
    found = Outcome.load(path)
    yield found
    found.save(path)


@pytest.fixture(scope="session")
def release(kubectl: Kubectl, outcome: Outcome, slowness: float) -> Iterator[Release]:
    """The release that all suites share, with listeners for the clients outside the cluster. In the full run
    it is the previous version, which the first suite upgrades.
    """
    if PREVIOUS_ROOT in os.environ:
        root, tag = Path(os.environ[PREVIOUS_ROOT]), os.environ[PREVIOUS_TAG]
        # The previous chart has no TLS unless it is asked for, and TLS is fixed at the installation.
        found = Release(kubectl, RELEASE, {**OUTSIDE, "tls.mode": "disabled"}, tag, root)
    else:
        found = Release(kubectl, RELEASE, OUTSIDE, os.environ[TAG])
    try:
        outcome.figures["install to ready, s"] = found.install(READY_TIMEOUT_S * slowness)
        yield found
    finally:
        found.uninstall(UNINSTALL_TIMEOUT_S)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Ends the report of a failed test with the cluster's state and the ends of the pods' logs."""
    report = yield
    if report.failed and NAMESPACE in os.environ:
        report.sections += _state_of(Kubectl({}, os.environ[NAMESPACE]))
    return report


def _state_of(kubectl: Kubectl) -> list[tuple[str, str]]:
    sections = []
    for name, arguments in (
        ("pods", ["get", "pods", "-o", "wide"]),
        ("events", ["get", "events", "--sort-by=.lastTimestamp"]),
        (
            "logs",
            ["logs", "-l", f"app.kubernetes.io/instance={RELEASE}", "--all-containers", "--prefix"]
            + ["--tail", LOG_LINES, "--max-log-requests", "50", "--ignore-errors"],
        ),
    ):
        try:
            said = kubectl.run(*arguments)
        except KubectlError as error:
            said = str(error)
        sections.append((name, "\n".join(said.splitlines()[-150:])))
    return sections
