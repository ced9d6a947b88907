"""A program that lists the offsets of a group again and again, until its standard input ends. Run it as
`python offset_lister.py BOOTSTRAP GROUP`, in a process of its own: librdkafka ends the process in which an
AdminClient receives NOT_COORDINATOR for this request.

Like a script, it makes a client for each call. It prints a line for each call: the name of its error, or
"ok", and its duration in seconds.
"""

from __future__ import annotations

import sys
import threading
import time

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka.admin import AdminClient

CALL_TIMEOUT_S = 60.0


def main() -> None:
    bootstrap, group = sys.argv[1:]
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    while not ended.is_set():
        client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        began_s = time.monotonic()
        try:
            client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(
                CALL_TIMEOUT_S
            )
            outcome = "ok"
        except KafkaException as error:
            outcome = error.args[0].name()
        print(outcome, f"{time.monotonic() - began_s:.3f}", flush=True)


if __name__ == "__main__":
    main()
