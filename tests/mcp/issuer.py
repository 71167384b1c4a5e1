"""A local OAuth issuer: metadata, keys, registration, codes with PKCE, and signed tokens."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from authlib.common.security import generate_token
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from joserfc import jwt
from joserfc.jwk import ECKey


class Issuer:
    """An issuer in a thread, at a port of its own."""

    def __init__(self) -> None:
        self.key = ECKey.generate_key("P-256", {"kid": "1"})
        self.clients: dict[str, list[str]] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.key_requests = 0
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.get(self)

            def do_POST(self) -> None:
                issuer.post(self, self.rfile.read(int(self.headers["Content-Length"])).decode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self) -> Issuer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._thread.is_alive():
            return
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()

    def rotate(self) -> None:
        """Replace the key."""
        self.key = ECKey.generate_key("P-256", {"kid": str(int(self.key.kid or "0") + 1)})

    def token(self, now: int, audience: str, scope: str = "treadle:read", **claims: Any) -> str:
        """A token for ada, valid for an hour."""
        told = {"iss": self.url, "aud": audience, "sub": "ada", "exp": now + 3600, "iat": now, "scope": scope, **claims}
        header = {"alg": "ES256", "kid": self.key.kid, "typ": "at+jwt"}
        return jwt.encode(header, {name: value for name, value in told.items() if value is not None}, self.key)

    def get(self, request: BaseHTTPRequestHandler) -> None:
        """Metadata, keys, and the authorization of a signed-in person who agrees."""
        parts = urlsplit(request.path)
        if parts.path == "/.well-known/oauth-authorization-server":
            _send(
                request,
                {
                    "issuer": self.url,
                    "authorization_endpoint": f"{self.url}/authorize",
                    "token_endpoint": f"{self.url}/token",
                    "registration_endpoint": f"{self.url}/register",
                    "jwks_uri": f"{self.url}/keys",
                    "response_types_supported": ["code"],
                    "code_challenge_methods_supported": ["S256"],
                    "token_endpoint_auth_methods_supported": ["none"],
                },
            )
        elif parts.path == "/keys":
            self.key_requests += 1
            _send(request, {"keys": [self.key.as_dict(private=False)]})
        elif parts.path == "/authorize":
            given = {name: values[0] for name, values in parse_qs(parts.query).items()}
            assert given["redirect_uri"] in self.clients[given["client_id"]]
            code = generate_token(32)
            self.codes[code] = given
            request.send_response(302)
            request.send_header("Location", f"{given['redirect_uri']}?{urlencode({'code': code, 'state': given['state']})}")
            request.end_headers()
        else:
            request.send_error(404)

    def post(self, request: BaseHTTPRequestHandler, body: str) -> None:
        """Registration of clients, and tokens for codes."""
        if request.path == "/register":
            given = json.loads(body)
            client_id = generate_token(16)
            self.clients[client_id] = given["redirect_uris"]
            _send(request, {**given, "client_id": client_id}, 201)
            return
        asked = {name: values[0] for name, values in parse_qs(body).items()}
        known = self.codes.pop(asked["code"])
        assert known["redirect_uri"] == asked["redirect_uri"]
        assert known["code_challenge"] == create_s256_code_challenge(asked["code_verifier"])
        token = self.token(self.now(), known["resource"], known["scope"])
        _send(request, {"access_token": token, "token_type": "Bearer", "expires_in": 3600, "scope": known["scope"]})

    def now(self) -> int:
        """Seconds since 1970."""
        return int(time.time())  # noqa: TID251 - servers under test use the system's clock


def _send(request: BaseHTTPRequestHandler, value: Any, status: int = 200) -> None:
    request.send_response(status)
    request.send_header("Content-Type", "application/json")
    request.end_headers()
    request.wfile.write(json.dumps(value).encode())
