"""The brokers of a cluster answer as those of Apache Kafka 4.3.1 do: leaders, followers, coordinators, other
brokers, and the brokers of a cluster in which one is down.

`answerslab` has the questions, the recording of Kafka's answers and the reasons for other answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from answerslab.differences import DIFFERENCES_OF_PLACES
from answerslab.page import PLACES_RECORDING, compare, read, versions_in
from answerslab.places_script import RACK_PREFIX, SETTINGS_OF_THREE, ask_places
from clusterlab.tidelog_cluster import TidelogCluster
from tidelog.broker.coordination.coordination import AFTER_START_MS

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(240)]


def test_answers_that_depend_on_the_broker(new_cluster: Callable[..., TidelogCluster]) -> None:
    kafkas = read(PLACES_RECORDING.read_text())
    cluster = new_cluster(settings=SETTINGS_OF_THREE, options=("--rack-prefix", RACK_PREFIX))
    time.sleep(AFTER_START_MS / 1000)  # until then, the answers to OffsetFetch differ (ADR 0080)
    compare(kafkas, ask_places(cluster, versions_in(kafkas, case=None)), DIFFERENCES_OF_PLACES)
