"""With the same ACLs, tidelog answers requests for delegation tokens as Apache Kafka 4.3.1 does.

`answerslab.tokens` has the requests and the recording of Kafka's responses.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import answerslab.authorization
from answerslab.tokens import SETTINGS, observe
from brokerlab.broker_process import BrokerProcess, free_port
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER

RECORDING = Path(answerslab.authorization.__file__).with_name("kafka_token_responses.json")


def test_responses_are_those_of_kafka(start_broker: Callable[..., BrokerProcess]) -> None:
    open_port, port = free_port(), free_port()
    start_broker(
        {
            **SETTINGS,
            "listeners": f"PLAINTEXT://127.0.0.1:{open_port},LOGIN://127.0.0.1:{port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
            "authorizer.class.name": STANDARD_AUTHORIZER,
        },
        port=open_port,
    )
    kafkas: dict[str, Any] = json.loads(RECORDING.read_text())
    ours = observe(f"127.0.0.1:{port}", pause_s=0)
    different = {
        case: [answer, kafkas.get(case)] for case, answer in ours.items() if answer != kafkas.get(case)
    }
    assert different == {}
    assert ours.keys() == kafkas.keys()
