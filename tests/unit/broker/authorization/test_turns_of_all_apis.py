"""No API judges many items of a request, or of its response, in one turn of the event loop."""

from __future__ import annotations

import asyncio
from itertools import count
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from tidelog.broker.cluster.view import CurrentSettings, MetadataView
from tidelog.broker.coordination.coordination import NamedRequest
from tidelog.broker.requests.apis import APIS
from tidelog.broker.requests.chain import guarded
from tidelog.broker.requests.request import Handling, RequestContext, RequestSource, Route
from tidelog.broker.security.acl_index import AclIndex, Address
from tidelog.broker.security.authorizer import Authorizer
from tidelog.broker.security.judging import By, Each, Shown
from tidelog.kernel import slices
from tidelog.kernel.clock import ManualClock
from tidelog.kernel.steps import all_at_once
from tidelog.metrics.telemetry import Telemetry
from tidelog.model.acl import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    Principal,
    ResourceType,
    user_principal,
)
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.schema import ZERO_UUID, F, FieldType

ALICE = user_principal("alice")
MAX_NAMES_OF_TURN: Final = 2 * slices.STEPS_BETWEEN_READINGS + 2
"""Two slices, because the last one of the judgement and the first one of an edit may be in one turn, and the
group or the cluster beside them.
"""
ITEMS_BY_DEPTH: Final = (2 * MAX_NAMES_OF_TURN, 2, 1, 1, 1)
FEW_NAMES: Final = {
    ApiKey.JOIN_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.DESCRIBE_CLUSTER,
}
"""The APIs with rules of their own that decide about no list."""
MANY_NAMES: Final = sorted(
    {key for key, api in APIS.items() if any(isinstance(each, Each | Shown | By) for each in api.needs)}
    - FEW_NAMES
)
_CONFIG_TOPIC: Final = 2
_SCALARS: Final[dict[str, object]] = {"bool": True, "float64": 0.0, "uuid": ZERO_UUID, "bytes": b""}


class LargeMessage:
    """Makes messages with many items, in which each text is another one. `has_null` makes arrays null if they
    may be, which often asks for everything.
    """

    def __init__(self, version: int, *, has_null: bool) -> None:
        self._version = version
        self._has_null = has_null
        self._numbers = count()

    def make(self, kind: Any, depth: int = 0) -> Any:
        fields = [field for field in kind.FIELDS if field.is_in(self._version)]
        return kind(**{field.name: self._value(field, field.kind, depth) for field in fields})

    def _value(self, field: F, kind: FieldType, depth: int) -> object:
        if isinstance(kind, tuple):
            if self._has_null and field.is_nullable_in(self._version):
                return None
            return [self._value(field, kind[0], depth + 1) for _ in range(ITEMS_BY_DEPTH[depth])]
        if not isinstance(kind, str):
            return self.make(kind, depth)
        if kind == "string":
            return f"shown-{next(self._numbers)}"
        return _SCALARS.get(kind, _CONFIG_TOPIC if field.name == "resource_type" else 0)


class Turns:
    """A gate before a handler that gives a large response, and the names that each turn decides about."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most_in_turn = 0
        self.decided: set[str] = set()
        self._in_turn: set[str] = set()
        bindings = [
            AclBinding(kind, PatternType.LITERAL, "*", ALICE, "*", AclOperation.ALL, PermissionType.ALLOW)
            for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
        ]
        rules = all_at_once(AclIndex().changed((), bindings))
        view = SimpleNamespace(security=SimpleNamespace(rules=rules), topics={}, topic_names={})
        self._authorizer = Authorizer(
            cast(MetadataView, view), frozenset(), allow_if_no_acl=False, on_denied=lambda *_: None
        )
        creates = SimpleNamespace(broker=SimpleNamespace(auto_create_topics_enable=True))
        self._settings = cast(CurrentSettings, creates)
        decide = AclIndex.decide

        def counted(
            index: AclIndex, principal: Principal, address: Address, operation: int, kind: int, name: str
        ) -> bool | None:
            self._in_turn.add(name)
            self.decided.add(name)
            self.most_in_turn = max(self.most_in_turn, len(self._in_turn))
            return decide(index, principal, address, operation, kind, name)

        monkeypatch.setattr(slices, "SLICE_MS", 1e-6)  # a slice ends at the first reading of the clock
        monkeypatch.setattr(AclIndex, "decide", counted)

    async def call(self, api_key: ApiKey, version: int, *, has_null: bool) -> None:
        large = LargeMessage(version, has_null=has_null)
        request = large.make(codec.request_class(api_key))
        response = LargeMessage(version, has_null=False).make(codec.response_class(api_key))
        if hasattr(request, "group_id"):  # the coordinator's APIs take the topics as another argument
            body = b"".join(map(bytes, codec.request_encoder(api_key, version)(request)))
            request = NamedRequest(request.group_id, body)

        async def handle(_: object, context: RequestContext) -> Any:
            self._in_turn.clear()  # it awaits the answer of another process
            return response

        needs = APIS[api_key].needs
        handling = guarded(api_key, needs, Handling(handle), self._authorizer, self._settings)
        route = Route(api_key, version, handling, Telemetry(ManualClock()))
        source = RequestSource(asyncio.get_running_loop(), "PLAINTEXT")
        source.principal = ALICE
        context = RequestContext(source, route, 1, None, 0.0)
        self._in_turn.clear()
        answer = route.handle(request, context)
        answering = asyncio.ensure_future(self._sent(route, context, answer))
        while not answering.done():
            self._in_turn.clear()
            await asyncio.sleep(0)
        await answering

    @staticmethod
    async def _sent(route: Route, context: RequestContext, answer: Any) -> None:
        if asyncio.iscoroutine(answer):
            answer = await answer
        await route.encode_in_slices(context, answer)


@pytest.mark.parametrize("api_key", MANY_NAMES, ids=lambda key: ApiKey(key).name)
def test_no_turn_judges_many_items(api_key: int, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch)
    served = APIS[api_key]
    for version in sorted({served.min_version, served.max_version}):
        for has_null in (False, True):
            asyncio.run(turns.call(ApiKey(api_key), version, has_null=has_null))
    assert len(turns.decided) > MAX_NAMES_OF_TURN
    assert turns.most_in_turn <= MAX_NAMES_OF_TURN
