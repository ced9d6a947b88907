"""Environment variables by which `python -m e2e` tells pytest's suites what to run on."""

from __future__ import annotations

from typing import Final

NAMESPACE: Final = "TIDELOG_E2E_NAMESPACE"
TAG: Final = "TIDELOG_E2E_TAG"
PREVIOUS_TAG: Final = "TIDELOG_E2E_PREVIOUS_TAG"
PREVIOUS_ROOT: Final = "TIDELOG_E2E_PREVIOUS_ROOT"
"""The directory with the chart and the values of the previous version. It is not set in the short run."""
OUTCOME: Final = "TIDELOG_E2E_OUTCOME"
SLOWNESS: Final = "TIDELOG_E2E_SLOWNESS"
RELEASE: Final = "e2e"
