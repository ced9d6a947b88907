"""A broker with an authorizer and a listener for each security protocol, and the credentials of one client.

The client is ALICE with each way to log in. Its ACLs allow it to write and read TOPIC and to use GROUP, and
nobody else may. Certificates are made with openssl.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from brokerlab.broker_process import BrokerProcess, free_port
from brokerlab.clients import create_topic
from brokerlab.identity_provider import AUDIENCE, IdentityProvider
from brokerlab.raw_client import RawClient
from tidelog.cli.local_cluster.certificate_authority import CertificateAuthority, CertificateFiles
from tidelog.kernel.clock import SystemClock
from tidelog.rpc.peer_tls import PeerTls, ServiceRole, role_name
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER

ALICE: Final = "alice"
PASSWORD: Final = "alice-secret"
MALLORY: Final = "mallory"
"""A client of the identity provider whose tokens are for another audience."""
TOPIC: Final = "secured"
GROUP: Final = "secured"
WAIT_S: Final = 30.0
_MODULES: Final = "org.apache.kafka.common.security"
_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority(NamedTuple):
    certificate: Path
    key: Path


def new_authority(directory: Path, name: str) -> Authority:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    made = Authority(directory / f"{name}.crt", directory / f"{name}.key")
    _openssl("req", "-x509", *_EC, "-days", "2", "-subj", f"/CN={name}", "-keyout", made.key, "-out", made[0])
    return made


def put_identity(
    directory: Path, authority: Authority, *, name: str = "tidelog", expired: bool = False
) -> None:
    """Replaces ca.crt, tls.crt and tls.key at once, as kubelet does. The certificate is for every role."""
    directory.mkdir(exist_ok=True)
    key, request, certificate, extensions = (directory / f"new.{end}" for end in ("key", "csr", "crt", "ext"))
    names = (name, *(role_name(role, name) for role in ServiceRole), "*.example")
    extensions.write_text("subjectAltName=" + ",".join(f"DNS:{each}" for each in names) + "\n")
    _openssl("req", *_EC, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
    _openssl(
        *("x509", "-req", "-in", request, "-CA", authority.certificate, "-CAkey", authority.key),
        *("-CAcreateserial", "-days", "-1" if expired else "2", "-extfile", extensions, "-out", certificate),
    )
    new_ca = directory / "new.ca"
    shutil.copyfile(authority.certificate, new_ca)
    for made, place in ((new_ca, "ca.crt"), (certificate, "tls.crt"), (key, "tls.key")):
        made.replace(directory / place)


def tls_of(directory: Path, *, server_name: str = "tidelog") -> PeerTls:
    files = (str(directory / name) for name in ("ca.crt", "tls.crt", "tls.key"))
    return PeerTls(*files, server_name=server_name)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


class Mechanism(Enum):
    """A way to prove an identity. The values are the names in the documentation."""

    PLAIN = "PLAIN"
    SCRAM_256 = "SCRAM-SHA-256"
    SCRAM_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"
    TOKEN = "delegation token"
    CERTIFICATE = "certificate"

    @property
    def sasl_name(self) -> str:
        return "SCRAM-SHA-512" if self is Mechanism.TOKEN else self.value


class Case(NamedTuple):
    """A client's login. `is_right` states whether its credentials are valid."""

    mechanism: Mechanism
    protocol: str
    is_right: bool

    def __str__(self) -> str:
        return f"{self.mechanism.value}, {self.protocol}, {'right' if self.is_right else 'wrong'}"


CASES: Final = tuple(
    Case(mechanism, protocol, is_right)
    for mechanism in Mechanism
    for protocol in (("SSL",) if mechanism is Mechanism.CERTIFICATE else ("SASL_PLAINTEXT", "SASL_SSL"))
    for is_right in (True, False)
)


class _Provider(IdentityProvider):
    def __init__(self) -> None:
        super().__init__()
        self.clients[MALLORY] = PASSWORD

    def token(self, user: str, **claims: Any) -> str:
        if user == MALLORY:
            claims.setdefault("aud", "other")
        return super().token(user, **claims)


class SecuredBroker:
    """The running broker. `close` ends it and the identity provider."""

    def __init__(self, directory: Path) -> None:
        self.provider = _Provider()
        now_ms = SystemClock().wall_ms()
        self._authorities = directory / "authority", directory / "other-authority"
        for place, authority_directory in zip(("", "other-"), self._authorities, strict=True):
            authority = CertificateAuthority.open(authority_directory, now_ms=now_ms)
            authority.renew(directory / f"{place}client", [ALICE], now_ms=now_ms)
            if not place:
                authority.renew(directory / "broker", ["127.0.0.1"], now_ms=now_ms)
        self._directory = directory
        broker_files = CertificateFiles.within(directory / "broker")
        self.ca = broker_files.ca
        keystore = directory / "keystore.pem"
        keystore.write_text(broker_files.key.read_text() + broker_files.certificate.read_text())
        self.ports = {name: free_port() for name in ("PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL", "SSL")}
        self.process = BrokerProcess(
            directory / "data",
            directory / "broker.log",
            {
                "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()),
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
                "sasl.jaas.config": f'{_MODULES}.plain.PlainLoginModule required user_{ALICE}="{PASSWORD}";',
                "sasl.oauthbearer.jwks.endpoint.url": f"{self.provider.issuer}/jwks",
                "sasl.oauthbearer.expected.audience": AUDIENCE,
                "sasl.oauthbearer.expected.issuer": self.provider.issuer,
                "ssl.keystore.location": str(keystore),
                "ssl.truststore.location": str(self.ca),
                "ssl.truststore.type": "PEM",
                "listener.name.ssl.ssl.client.auth": "required",
                "listener.name.ssl.ssl.principal.mapping.rules": r"RULE:^.*CN=([^,]+).*$/$1/",
                "authorizer.class.name": STANDARD_AUTHORIZER,
                "super.users": "User:ANONYMOUS",
                "delegation.token.secret.key": "the cluster's secret",
                "connection.failed.authentication.delay.ms": "0",
            },
            self.ports["PLAINTEXT"],
        ).start()
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        create_topic(self.process.bootstrap, TOPIC, 1)
        admin = AdminClient({"bootstrap.servers": self.process.bootstrap})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            change = UserScramCredentialUpsertion(
                ALICE, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode()
            )
            for future in admin.alter_user_scram_credentials([change]).values():
                future.result(WAIT_S)
        allowed = [
            AclBinding(
                kind,
                name,
                ResourcePatternType.LITERAL,
                f"User:{ALICE}",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for kind, name, operation in (
                (ResourceType.TOPIC, TOPIC, AclOperation.WRITE),
                (ResourceType.TOPIC, TOPIC, AclOperation.READ),
                (ResourceType.TOPIC, TOPIC, AclOperation.DESCRIBE_CONFIGS),  # the pipeline's verification
                (ResourceType.GROUP, GROUP, AclOperation.READ),
            )
        ]
        for created in admin.create_acls(allowed).values():
            created.result(WAIT_S)
        self.token_id, self.token_secret = self._new_token()

    def _new_token(self) -> tuple[str, str]:
        """Returns the id and the password of a new delegation token of ALICE."""
        with RawClient(self.bootstrap("SASL_PLAINTEXT")) as client:
            assert client.call("sasl_handshake", 1, mechanism="PLAIN").error_code == 0
            login = f"\0{ALICE}\0{PASSWORD}".encode()
            assert client.call("sasl_authenticate", 2, auth_bytes=login).error_code == 0
            made = client.call(
                "create_delegation_token",
                3,
                owner_principal_type=None,
                owner_principal_name=None,
                renewers=[],
                max_lifetime=-1,
            )
            assert made.error_code == 0
            return str(made.token_id), base64.b64encode(bytes(made.hmac)).decode()

    def bootstrap(self, protocol: str) -> str:
        return f"127.0.0.1:{self.ports[protocol]}"

    def client_files(self, case: Case) -> CertificateFiles:
        """Returns the certificate of the client, which for a wrong case is from another authority."""
        return CertificateFiles.within(self._directory / ("client" if case.is_right else "other-client"))

    def user_and_password(self, case: Case) -> tuple[str, str]:
        user, password = ALICE, PASSWORD
        if case.mechanism is Mechanism.TOKEN:
            user, password = self.token_id, self.token_secret
        return user, password if case.is_right else "wrong"

    def oauth_user(self, case: Case) -> str:
        return ALICE if case.is_right else MALLORY

    def certificate_properties(self) -> dict[str, str]:
        """Returns the settings of a client with ALICE's certificate, on the listener SSL."""
        files = self.client_files(Case(Mechanism.CERTIFICATE, "SSL", is_right=True))
        return {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": files.key.read_text(),
            "ssl.keystore.certificate.chain": files.certificate.read_text(),
        }

    def java_properties(self, case: Case) -> dict[str, str]:
        """Returns the settings of Kafka's own clients."""
        found = {
            "bootstrap.servers": self.bootstrap(case.protocol),
            "security.protocol": case.protocol,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
        }
        if case.mechanism is Mechanism.CERTIFICATE:
            files = self.client_files(case)
            keystore = self._directory / f"java-{case.is_right}.pem"
            keystore.write_text(files.key.read_text() + files.certificate.read_text())
            return found | {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(keystore)}
        found["sasl.mechanism"] = case.mechanism.sasl_name
        if case.mechanism is Mechanism.OAUTHBEARER:
            handler = f"{_MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler"
            return found | {
                "sasl.login.callback.handler.class": handler,
                "sasl.oauthbearer.token.endpoint.url": f"{self.provider.issuer}/token",
                "sasl.jaas.config": f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required "
                f'clientId="{self.oauth_user(case)}" clientSecret="{PASSWORD}" scope="kafka";',
            }
        module = "plain.PlainLoginModule" if case.mechanism is Mechanism.PLAIN else "scram.ScramLoginModule"
        user, password = self.user_and_password(case)
        token = ' tokenauth="true"' if case.mechanism is Mechanism.TOKEN else ""
        login = f'{_MODULES}.{module} required username="{user}" password="{password}"{token};'
        return found | {"sasl.jaas.config": login}

    def close(self) -> None:
        self.provider.close()
        self.process.kill()
