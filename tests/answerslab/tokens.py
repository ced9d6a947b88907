"""Asks a broker for delegation tokens of oneself and of others, with the ACLs that concern them (KIP-373).

The steps run against Apache Kafka and tidelog on a listener where USERS log in with PLAIN. The recording of
Apache Kafka 4.3.1 is in `kafka_token_responses.json`. To write it again:

    export PYTHONPATH=services:tests
    export NAME=tokens BASE_PORT=24092 EXTRA_PROPS_TEXT="$(python -m answerslab.tokens)"
    shared/peer/kafka-up.sh 1
    python -m answerslab.tokens 127.0.0.1:27092 > tests/answerslab/kafka_token_responses.json
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from answerslab.authorization import ADMIN_HOST, PROPAGATION_S, until
from answerslab.client import Client
from tidelog.model.acl import AclOperation, PatternType, PermissionType, ResourceType
from tidelog.wire.messages import create_acls, delete_acls, sasl_authenticate, sasl_handshake
from tidelog.wire.messages import create_delegation_token as create
from tidelog.wire.messages import describe_delegation_token as describe
from tidelog.wire.messages import expire_delegation_token as expire
from tidelog.wire.messages import renew_delegation_token as renew

USERS: Final = ("admin", "alice", "bob", "carol")
LOGIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required " + " ".join(
    f'user_{user}="{user}"' for user in USERS
)
SETTINGS: Final = {
    "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.login.plain.sasl.jaas.config": f"{LOGIN};",
    "super.users": "User:admin;User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "false",
    "delegation.token.secret.key": "secret",
}
OF_KAFKA: Final = {
    "listeners": "PLAINTEXT://127.0.0.1:24092,CONTROLLER://127.0.0.1:25092,INTERNAL://127.0.0.1:26092,"
    "LOGIN://127.0.0.1:27092",
    "advertised.listeners": "PLAINTEXT://127.0.0.1:24092,INTERNAL://127.0.0.1:26092,LOGIN://127.0.0.1:27092",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,"
    "LOGIN:SASL_PLAINTEXT",
}
OWNERS: Final = (None, [], ["alice"], ["bob"], ["carol"])
Grants = tuple[tuple[ResourceType, str, AclOperation], ...]


def _logged_in(bootstrap: str, user: str) -> Client:
    client = Client(bootstrap, ADMIN_HOST)
    assert client.call(sasl_handshake.SaslHandshakeRequest("PLAIN"), 1).error_code == 0
    token = f"\0{user}\0{user}".encode()
    assert client.call(sasl_authenticate.SaslAuthenticateRequest(token), 2).error_code == 0
    return client


def _creation(owner: str = "", *renewers: str) -> create.CreateDelegationTokenRequest:
    return create.CreateDelegationTokenRequest(
        "User" if owner else None,
        owner or None,
        [create.CreatableRenewers("User", name) for name in renewers],
        -1,
    )


def _plain_token(token: Any) -> str:
    renewers = ",".join(sorted(renewer.principal_name for renewer in token.renewers))
    return f"{token.principal_name}, requested by {token.token_requester_principal_name}, {renewers}"


def _described(client: Client, owners: list[str] | None) -> Any:
    wanted = None
    if owners is not None:
        wanted = [describe.DescribeDelegationTokenOwner("User", name) for name in owners]
    answer = client.call(describe.DescribeDelegationTokenRequest(wanted), 3)
    return [answer.error_code, sorted(map(_plain_token, answer.tokens))]


def _grants_for(token_id: str) -> Iterator[tuple[str, Grants]]:
    user, token = ResourceType.USER, ResourceType.DELEGATION_TOKEN
    yield "nothing", ()
    yield "create tokens for bob", ((user, "User:bob", AclOperation.CREATE_TOKENS),)
    yield "describe tokens of bob", ((user, "User:bob", AclOperation.DESCRIBE_TOKENS),)
    yield "all on bob", ((user, "User:bob", AclOperation.ALL),)
    yield "all on bob without the type", ((user, "bob", AclOperation.ALL),)
    yield "create tokens for all", ((user, "*", AclOperation.CREATE_TOKENS),)
    yield "describe the token of bob", ((token, token_id, AclOperation.DESCRIBE),)
    yield "describe all tokens", ((token, "*", AclOperation.DESCRIBE),)


def observe(bootstrap: str, pause_s: float = PROPAGATION_S) -> dict[str, Any]:
    """Returns the responses to alice by grants and request."""
    admin, alice, bob = (_logged_in(bootstrap, user) for user in ("admin", "alice", "bob"))
    seen: dict[str, Any] = {}
    of_bob = bob.call(_creation(), 3)
    with_renewer = bob.call(_creation("", "carol"), 3)
    alice.call(_creation(), 3)
    # Kafka's first change of tokens takes longer than the others.
    until(lambda: len(_described(bob, None)[1]) == 2 and len(_described(alice, None)[1]) == 1)
    time.sleep(5 * pause_s)
    for label, grants in _grants_for(of_bob.token_id):
        _change_acls(admin, grants)
        time.sleep(pause_s)
        for owners in OWNERS:
            seen[f"{label}: describe {owners}"] = _described(alice, owners)
        for owner in ("", "alice", "bob", "carol"):
            made = alice.call(_creation(owner), 3)
            seen[f"{label}: create for {owner or 'oneself'}"] = [
                made.error_code,
                made.principal_name,
                made.token_requester_principal_name,
            ]
            if made.error_code == 0:
                time.sleep(pause_s)
                seen[f"{label}: describe after create for {owner}"] = _described(alice, None)
                renewed = alice.call(renew.RenewDelegationTokenRequest(made.hmac, 60_000), 2)
                ended = alice.call(expire.ExpireDelegationTokenRequest(made.hmac, -1), 2)
                seen[f"{label}: renew and expire for {owner}"] = [renewed.error_code, ended.error_code]
                time.sleep(pause_s)
        for name, token in (("bob", of_bob), ("bob with a renewer", with_renewer)):
            renewed = alice.call(renew.RenewDelegationTokenRequest(token.hmac, 60_000), 2)
            ended = alice.call(expire.ExpireDelegationTokenRequest(token.hmac, -1), 2)
            seen[f"{label}: renew and expire the token of {name}"] = [renewed.error_code, ended.error_code]
    strange = alice.call(
        create.CreateDelegationTokenRequest(None, None, [create.CreatableRenewers("Group", "g")], -1), 3
    )
    seen["a renewer that is no user"] = strange.error_code
    for client in (admin, alice, bob):
        client.close()
    return seen


def _change_acls(admin: Client, grants: Grants) -> None:
    """Makes `grants` the only ACLs of alice."""
    old = delete_acls.DeleteAclsFilter(1, None, 1, "User:alice", None, 1, 1)
    admin.call(delete_acls.DeleteAclsRequest([old]), 3)
    creations = [
        create_acls.AclCreation(
            kind, name, PatternType.LITERAL, "User:alice", "*", operation, PermissionType.ALLOW
        )
        for kind, name, operation in grants
    ]
    if creations:
        response = admin.call(create_acls.CreateAclsRequest(creations), 3)
        assert not any(result.error_code for result in response.results), response


if __name__ == "__main__":
    if len(sys.argv) > 1:
        json.dump(observe(sys.argv[1]), sys.stdout, indent=1, sort_keys=True)
    else:
        print("\n".join(f"{name}={value}" for name, value in {**SETTINGS, **OF_KAFKA}.items()))
