"""An OpenID Connect provider on a free port: discovery, keys, and tokens by client credentials."""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

AUDIENCE = "kafka"


class IdentityProvider:
    """Knows one client, `alice`, whose secret is `alice's secret`. Signs with RS256."""

    def __init__(self) -> None:
        self.clients = {"alice": "alice-secret"}
        self.lifetime_s = 3600
        self.key_reads = 0
        self._keys: dict[str, Any] = {}
        self.rotate("first")
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/jwks":
                    provider.key_reads += 1
                    self._answer(200, provider.key_set())
                elif self.path == "/.well-known/openid-configuration":
                    url = provider.issuer
                    self._answer(
                        200, {"issuer": url, "jwks_uri": f"{url}/jwks", "token_endpoint": f"{url}/token"}
                    )
                else:
                    self._answer(404, {})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = dict(urllib.parse.parse_qsl(body))
                given = self.headers.get("Authorization", "").removeprefix("Basic ")
                user, _, secret = base64.b64decode(given).decode().partition(":")
                user, secret = urllib.parse.unquote_plus(user), urllib.parse.unquote_plus(secret)
                if form.get("grant_type") != "client_credentials" or provider.clients.get(user) != secret:
                    self._answer(401, {"error": "invalid_client"})
                    return
                token = provider.token(user, scope=form.get("scope", "kafka"))
                self._answer(
                    200, {"access_token": token, "token_type": "Bearer", "expires_in": provider.lifetime_s}
                )

            def _answer(self, status: int, value: object) -> None:
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def rotate(self, key_id: str, *, kind: str = "RSA") -> None:
        """Replaces all keys by a new one."""
        key = (
            rsa.generate_private_key(65537, 2048)
            if kind == "RSA"
            else ec.generate_private_key(ec.SECP256R1())
        )
        self._keys = {key_id: key}

    def key_set(self) -> dict[str, Any]:
        rows = []
        for key_id, key in self._keys.items():
            is_rsa = isinstance(key, rsa.RSAPrivateKey)
            algorithm: Any = jwt.algorithms.RSAAlgorithm if is_rsa else jwt.algorithms.ECAlgorithm
            row = json.loads(algorithm.to_jwk(key.public_key()))
            rows.append({**row, "kid": key_id, "use": "sig", "alg": "RS256" if is_rsa else "ES256"})
        return {"keys": rows}

    def token(self, user: str, **claims: Any) -> str:
        """Returns a token. Claims replace the usual ones; None removes a claim."""
        now = int(time.time())
        usual = {
            "sub": user,
            "iss": self.issuer,
            "aud": AUDIENCE,
            "iat": now,
            "exp": now + self.lifetime_s,
            "scope": "kafka",
        }
        payload = {name: value for name, value in (usual | claims).items() if value is not None}
        ((key_id, key),) = self._keys.items()
        algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
        return jwt.encode(payload, key, algorithm=algorithm, headers={"kid": key_id})

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
