"""Asks Apache Kafka and tidelog the same questions and compares their answers.

A question is a request of an API in a version (`questions_*.py`), also one that its client may not make, one
that no coordinator can answer yet, and one whose bytes are malformed (`malformed.py`). `script.py` asks all
questions in a fixed order. `answers_of_kafka.txt` contains the answers of Apache Kafka 4.3.1, and
`differences.py` the reasons for the answers of tidelog that differ. A new API needs only its requests in one
of the tables of questions and a new recording, which a new broker makes:

    export NAME=answers BASE_PORT=27092
    EXTRA_PROPS_TEXT=$'super.users=User:nobody\\nauto.create.topics.enable=false' shared/peer/kafka-up.sh 1
    PYTHONPATH=services:tests python -m answerslab 127.0.0.1:27092 > tests/answerslab/answers_of_kafka.txt

Answers that depend on the broker (the leader, a follower, the coordinator, another broker, a cluster in which
a broker is down) are in `questions_places.py`, `places_script.py`, `places_of_kafka.txt` and
`differences.py`. They are asked in a cluster of three brokers that the command starts itself:

    PYTHONPATH=services:tests python -m answerslab --places kafka > tests/answerslab/places_of_kafka.txt

`python -m answerslab BOOTSTRAP --compare` and `python -m answerslab --places tidelog --compare` show how
other answers differ from the recordings, and `python -m answerslab --page` writes docs/answers.md.

`authorization.py` and `tokens.py` ask with each of the ACLs that concern a request; Kafka's responses are in
`kafka_acl_responses.json` and `kafka_token_responses.json`.
"""
