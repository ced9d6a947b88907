"""With the same ACLs, tidelog answers requests of each API as Apache Kafka 4.3.1 does.

`answerslab.authorization` has the cases and the recording of Kafka's responses.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import answerslab.authorization
from answerslab.authorization import observe
from brokerlab.broker_process import BrokerProcess
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER

RECORDING = Path(answerslab.authorization.__file__).with_name("kafka_acl_responses.json")
MARKERS_REFUSED = {
    "markers": [{"topics": [{"name": "acl-none", "partitions": [{"error_code": 31, "partition_index": 0}]}]}]
}
DIFFERENT: dict[str, Any] = {
    # The client of this test has not authenticated (ADR 0035).
    "write markers: ALTER CLUSTER kafka-cluster": MARKERS_REFUSED,
    "write markers: CLUSTER_ACTION CLUSTER kafka-cluster": MARKERS_REFUSED,
    "write markers: CLUSTER_ACTION CLUSTER kafka-cluster, ALTER CLUSTER kafka-cluster": MARKERS_REFUSED,
    "describe scram: nothing": {"error_code": 31},  # Kafka 4.3.1 does not answer a denied request
}


def test_responses_are_those_of_kafka(start_broker: Callable[..., BrokerProcess]) -> None:
    broker = start_broker(
        {
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "allow.everyone.if.no.acl.found": "true",
            "super.users": "User:nobody",
            "auto.create.topics.enable": "false",
        }
    )
    kafkas: dict[str, Any] = json.loads(RECORDING.read_text())
    # A change of ACLs is answered when all brokers have it, so that no pause is needed.
    ours = observe(broker.bootstrap, pause_s=0)
    assert ours.keys() == kafkas.keys()
    different = {case: answer for case, answer in ours.items() if answer != kafkas[case]}
    assert different == DIFFERENT
