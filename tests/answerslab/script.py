"""Asks a new broker all questions, in the same order at each run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from answerslab import questions_cluster, questions_groups, questions_records
from answerslab.client import CLOSED, NO_ANSWER, Client
from answerslab.messages import TRAILING, TRAILING_NAME, build, encoded, malformed_bodies, shown
from answerslab.question import (
    CUT,
    GROUP,
    OTHER,
    TOPIC,
    TRANSACTION,
    UNKNOWN_TRANSACTION,
    Case,
    Cases,
    Scene,
    batch,
)
from tidelog.model.acl import CLUSTER_NAME, AclOperation, PatternType, PermissionType, ResourceType
from tidelog.model.errors import ErrorCode
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.headers import decode_response_header, encode_request_header
from tidelog.wire.messages import (
    api_versions,
    create_acls,
    create_topics,
    describe_log_dirs,
    describe_transactions,
    find_coordinator,
    metadata,
    produce,
)

ADMIN_HOST, STRANGER_HOST = "127.0.0.1", "127.0.0.2"
PRINCIPAL = "User:ANONYMOUS"
READY_S = 30
SETTLED_S = 1
"""The time after which each broker has heard of all changes."""
TOPICS = (TOPIC, OTHER, CUT)
UNAUTHORIZED, NO_COORDINATOR = "unauthorized", "no coordinator"
WITHOUT_COORDINATOR = {
    ApiKey.INIT_PRODUCER_ID: "transaction",
    ApiKey.ADD_PARTITIONS_TO_TXN: "unknown transaction",
    ApiKey.ADD_OFFSETS_TO_TXN: "unknown transaction",
    ApiKey.TXN_OFFSET_COMMIT: "unknown transaction",
    ApiKey.END_TXN: "unknown transaction",
    ApiKey.DELETE_GROUPS: "unknown group",
}
"""The cases that are asked before coordinators exist, if it is not the first."""
NO_SUCH_API = 1999
FAR_ABOVE = 40
"""The distance of an unknown version from the known ones: newer versions of Kafka have some more."""
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "10",
    "transaction.state.log.num.partitions": "10",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.hours": "-1",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:nobody",
    "auto.create.topics.enable": "false",
}
"""The settings of the broker, which are those of shared/peer/kafka-up.sh."""

CASES: Cases = {**questions_records.CASES, **questions_groups.CASES, **questions_cluster.CASES}

Versions = Mapping[int, range]
Row = tuple[str, str, int]
"""An API by Kafka's name, a case, and a version."""
Answers = dict[Row, str]


def ask_all(bootstrap: str, versions: Versions | None = None) -> Answers:
    """Returns the answers of a new broker. It is asked in `versions`, or in those that it lists."""
    admin, stranger = Client(bootstrap, ADMIN_HOST), Client(bootstrap, STRANGER_HOST)
    versions = versions or listed_versions(admin, set(map(int, CASES)))
    answers: Answers = {}
    until(lambda: _create(admin, TOPICS))
    scene = described(admin)
    names = {known: name for name, known in scene.topic_ids.items()}
    for api in questions_groups.NEED_A_COORDINATOR:
        for version in versions.get(api, ()):
            for case in _first_case(api, version, WITHOUT_COORDINATOR.get(api)):
                question = request_of(api, case, replace(scene, version=version, tag=f"{version}-none"))
                answers[_row(api, NO_COORDINATOR, version)] = answer_of(admin, question, version, names)
    prepare(scene, versions)
    for api in CASES:
        for version in versions.get(api, ()):
            for label, answer in _answers_of(scene, stranger, api, version, names):
                answers[_row(api, label, version)] = answer
        answers |= _unknown_versions(admin, api, versions.get(api))
    time.sleep(SETTLED_S)
    for api, cases in questions_cluster.AFTERWARDS.items():
        version = versions[api].stop - 1
        for case in cases:
            question = request_of(api, case, scene)
            answers[_row(api, case.name, version)] = answer_of(admin, question, version, names)
    answers["an API that does not exist", "version 0", 0] = _raw(admin, NO_SUCH_API, 0, b"", {}, _header(0))
    for client in (admin, stranger):
        client.close()
    return answers


def _row(api: int, case: str, version: int) -> Row:
    return ApiKey(api).name_in_kafka, case, version


def _first_case(api: ApiKey, version: int, name: str | None = None) -> tuple[Case, ...]:
    """Returns the case from which others are derived, or the one with this name; none if there is none."""
    fitting = [
        case
        for case in CASES[api]
        if case.first <= version <= case.last and (name is None or case.name == name)
    ]
    return tuple(fitting[:1])


def request_of(api: ApiKey, case: Case, scene: Scene) -> Any:
    fields = case.fields(scene) if callable(case.fields) else case.fields
    return build(codec.request_class(api), fields)


def _answers_of(
    scene: Scene, stranger: Client, api: ApiKey, version: int, names: Mapping[Any, str]
) -> Iterator[tuple[str, str]]:
    """Yields the answers to all cases of an API in one version."""
    for number, case in enumerate(CASES[api]):
        if case.first <= version <= case.last:
            request = request_of(api, case, replace(scene, version=version, tag=f"{version}-{number}"))
            answer = answer_of(scene.client, request, version, names)
            yield case.name, answer.replace(f"-{version}-{number}", "-TAG")
    for case in _first_case(api, version):

        def fresh(kind: str, case: Case = case) -> Any:
            return request_of(api, case, replace(scene, version=version, tag=f"{version}-{kind}"))

        answer = answer_of(stranger, fresh("unauthorized"), version, names)
        yield UNAUTHORIZED, answer.replace(f"-{version}-unauthorized", "-TAG")
        body = encoded(fresh("trailing"), version)
        answer = _raw(scene.client, api, version, body + TRAILING, names)
        yield TRAILING_NAME, answer.replace(f"-{version}-trailing", "-TAG")
        for malformed in malformed_bodies(fresh("malformed"), version):
            answer = _raw(scene.client, api, version, malformed.body, names)
            yield malformed.name, answer.replace(f"-{version}-malformed", "-TAG")


def _unknown_versions(client: Client, api: ApiKey, served: range | None) -> Answers:
    if not served:
        return {}
    answers = {}
    above, below = served.stop + FAR_ABOVE, served.start - 1
    for label, version in (("above the versions", above), ("below the versions", below)):
        if version >= 0:
            encodes_as = min(max(version, served.start), served.stop - 1)
            header = _header(version, api, is_flexible=_is_flexible(api, encodes_as))
            answers[_row(api, label, version)] = _raw(client, api, version, b"\0" * 8, {}, header)
    return answers


def _is_flexible(api: ApiKey, version: int) -> bool:
    return encode_request_header(api, version, 1, "").endswith(b"\0\0\0")


def _header(version: int, api_key: int = NO_SUCH_API, *, is_flexible: bool = False) -> bytes:
    """Returns a header that the codec may not make, because it knows the API and the version not."""
    header = api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + (1).to_bytes(4, "big")
    return header + b"\0\x07answers" + (b"\0" if is_flexible else b"")


def answer_of(client: Client, request: Any, version: int, names: Mapping[Any, str]) -> str:
    return _raw(client, request.API_KEY, version, encoded(request, version), names)


def _raw(
    client: Client,
    api: int,
    version: int,
    body: bytes,
    names: Mapping[Any, str],
    header: bytes | None = None,
) -> str:
    try:
        answer = client.ask(api, version, body, header)
    except TimeoutError:
        return NO_ANSWER
    except OSError:
        return CLOSED
    decoded_as = version
    if header is not None:
        if api != ApiKey.API_VERSIONS:
            return "an answer"
        decoded_as = 0  # the answer to an unknown version
    try:
        _, position = decode_response_header(answer, 0, api, decoded_as)
        return shown(codec.response_decoder(api, decoded_as)(answer, position)[0], names)
    except codec.MalformedMessageError:
        return "an answer in another form"


def listed_versions(client: Client, apis: Collection[int]) -> Versions:
    """Returns the versions of `apis` that the broker lists and this codec knows."""
    listed = client.call(api_versions.ApiVersionsRequest("answers", "1"), 3).api_keys
    known = {}
    for entry in listed:
        if entry.api_key in apis:
            first, last = codec.request_class(entry.api_key).VERSIONS
            known[entry.api_key] = range(max(first, entry.min_version), min(last, entry.max_version) + 1)
    return known


def described(admin: Client) -> Scene:
    """Returns the names and ids of the topics, of the broker and of its directory."""
    deadline = time.monotonic() + READY_S
    while True:
        found = admin.call(metadata.MetadataRequest(topics=None), 12)
        ids = {topic.name: topic.topic_id for topic in found.topics}
        if ids.keys() >= set(TOPICS):
            break
        assert time.monotonic() < deadline, "the topics do not appear"
        time.sleep(0.1)
    (directory,) = admin.call(describe_log_dirs.DescribeLogDirsRequest(None), 4).results
    return Scene(admin, ids, found.brokers[0].node_id, directory.log_dir)


def prepare(scene: Scene, versions: Versions) -> None:
    """Gives the administrator every right, and creates what the questions name."""
    admin = scene.client
    _allow_everything(admin)
    gone = [
        f"answers-gone-{version}-{tag}"
        for version in versions.get(ApiKey.DELETE_TOPICS, ())
        for tag in (0, "trailing", "unauthorized")
    ]
    _create(admin, gone)
    for epoch, topic in ((2, CUT), (0, OTHER), (1, OTHER), (2, OTHER)):
        fields = {"producer_id": 444_444, "producer_epoch": epoch, "base_sequence": 0} if topic == CUT else {}
        parts = [produce.PartitionProduceData(0, batch(1_000 * epoch, **fields))]
        data = [produce.TopicProduceData(topic, partition_data=parts)]
        until(lambda data=data: _is_stored(admin, data))
    for key, kind in ((GROUP, 0), (TRANSACTION, 1)):
        request = find_coordinator.FindCoordinatorRequest(key, kind)
        until(lambda request=request: not admin.call(request, 3).error_code)
    until(lambda: _commits(scene))
    scene.producer(TRANSACTION)
    until(lambda: _has_coordinator(admin, UNKNOWN_TRANSACTION))


def _commits(scene: Scene) -> bool:
    try:
        scene.commit(GROUP)
    except AssertionError:
        return False
    return True


def _has_coordinator(admin: Client, transactional_id: str) -> bool:
    """Returns whether a coordinator knows that a transaction does not exist, and does not load any more."""
    response = admin.call(describe_transactions.DescribeTransactionsRequest([transactional_id]), 0)
    return response.transaction_states[0].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def _is_stored(admin: Client, data: list[produce.TopicProduceData]) -> bool:
    response = admin.call(produce.ProduceRequest(None, -1, 5000, data), 9)
    return not response.responses[0].partition_responses[0].error_code


def _create(admin: Client, names: Any) -> bool:
    topics = [create_topics.CreatableTopic(name, 1, 1) for name in names]
    results = admin.call(create_topics.CreateTopicsRequest(topics, 10_000), 7).topics
    return all(result.error_code in (0, 36) for result in results)


def _allow_everything(admin: Client) -> None:
    kinds = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID)
    creations = [
        create_acls.AclCreation(
            kind,
            CLUSTER_NAME if kind is ResourceType.CLUSTER else "*",
            PatternType.LITERAL,
            PRINCIPAL,
            ADMIN_HOST,
            AclOperation.ALL,
            PermissionType.ALLOW,
        )
        for kind in kinds
    ]
    response = admin.call(create_acls.CreateAclsRequest(creations), 3)
    assert not any(result.error_code for result in response.results), response
    time.sleep(1)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_S
    while not holds():
        assert time.monotonic() < deadline, "the broker is not ready for the questions"
        time.sleep(0.1)
