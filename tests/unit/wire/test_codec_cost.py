"""The codec takes at most three times its budget, even on a busy machine. tests/bench/codec_cost.py prints
the measurements.
"""

from __future__ import annotations

import pytest

from bench.codec_cost import Case, cases, cost_us

TOLERANCE = 3.0
ATTEMPTS = 3


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.name.replace(" ", "-"))
@pytest.mark.slow
def test_cost(case: Case) -> None:
    spent = min(cost_us(case.run) for _ in range(ATTEMPTS))
    assert spent <= TOLERANCE * case.budget_us, f"{case.name}: {spent:.2f} us, budget {case.budget_us} us"
