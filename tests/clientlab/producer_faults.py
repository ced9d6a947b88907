"""The faults of model brokers that properties of the producer draw from."""

from __future__ import annotations

from hypothesis import strategies as st

from clientlab.model_brokers import Faults

_PROBABILITY = st.sampled_from([0.0, 0.02, 0.1, 0.3])
PRODUCER_FAULTS = st.builds(
    Faults,
    lost_request=_PROBABILITY,
    lost_response=_PROBABILITY,
    refused=_PROBABILITY,
    rejected=st.sampled_from([0.0, 0.0, 0.05]),
    leader_moves=_PROBABILITY,
    replaced=_PROBABILITY,
    slow=_PROBABILITY,
    unconnected=_PROBABILITY,
    most_records=st.sampled_from([None, None, 1, 3]),
)
