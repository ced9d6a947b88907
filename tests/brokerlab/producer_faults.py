"""The faults of model brokers that properties of the producer draw from."""

from __future__ import annotations

from hypothesis import strategies as st

from brokerlab.producer_runs import drawn_faults

PRODUCER_FAULTS = st.randoms(use_true_random=False).map(drawn_faults)
