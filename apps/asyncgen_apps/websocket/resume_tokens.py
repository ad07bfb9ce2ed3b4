"""Sign and read resume tokens, by which another server can resume a request.

The client keeps the token and sends it back, so another server with the same secret needs nothing
from the first. A token names the client, the request (as a digest), its seed, its engine and its
start, and holds no text. The signature is HMAC-SHA-256 (RFC 2104), cut to 16 bytes. Knows no
connection and no engine.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import struct
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asyncgen_apps.serving.time_slices import give_way, slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from asyncgen_apps.serving.clients import Client
    from asyncgen_apps.websocket.messages import Wanted

LEAST_SECRET = 16
"""Fewest characters of a secret."""

SECRET_VARIABLE = "ASYNCGEN_RESUME_SECRET"
"""Environment variable with the secret, if no option gives one."""

NO_ENGINE = bytes(8)
"""Mark of a request whose tokens are not all from one known engine."""

_FORM = struct.Struct(">B12sdq8s8s16s")
_VERSION = 1
_MAC = 16
_PIECE = 2**16
"""Characters that are serialized in one call."""
_ENTRIES = 2**10
"""List entries that are serialized in one call."""
_LATER = 300.0
"""Seconds by which the clock of another server may be ahead."""


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """Content of a resume token.

    Attributes:
        began: Time of its first acceptance, in seconds since 1970.
        seed: Seed of its random draws.
        owner: Mark of the client.
        engine: Mark of the one engine that generated all tokens; else ``NO_ENGINE``.
        wanted: Digest of the request.
    """

    began: float
    seed: int
    owner: bytes
    engine: bytes
    wanted: bytes


class Signer:
    """Makes and reads tokens."""

    def __init__(self, secret: str = "", clock: Callable[[], float] = time.time) -> None:
        """Take the secret.

        Args:
            secret: Secret of all servers that resume each other's requests; empty draws one.
            clock: Returns seconds since 1970.
        """
        text = secret.encode() if secret else secrets.token_bytes(32)
        self._key = hashlib.sha256(b"asyncgen.resume" + text).digest()
        self.clock = clock

    def sign(self, claims: TokenClaims) -> str:
        """Make a token; two tokens of the same claims differ."""
        name = secrets.token_bytes(12)
        fields = (claims.began, claims.seed, claims.owner, claims.engine, claims.wanted)
        body = _FORM.pack(_VERSION, name, *fields)
        return urlsafe_b64encode(body + self._mac(body)).rstrip(b"=").decode()

    def read(self, token: str) -> TokenClaims | None:
        """Read a token; return ``None`` if its signature is not of this secret."""
        try:
            raw = urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
        except (UnicodeEncodeError, ValueError):
            return None
        body, mac = raw[: _FORM.size], raw[_FORM.size :]
        if len(raw) != _FORM.size + _MAC or not hmac.compare_digest(mac, self._mac(body)):
            return None
        version, _, began, seed, owner, engine, wanted = _FORM.unpack(body)
        if version != _VERSION or began > self.clock() + _LATER:
            return None
        return TokenClaims(began, seed, owner, engine, wanted)

    def owner(self, client: Client) -> bytes:
        """Return the mark of a client, a digest of its key; the same for all without a key."""
        return self._mark(b"owner", client.cache_salt)

    def engine(self, fingerprint: str | None) -> bytes:
        """Return the mark of an engine."""
        return NO_ENGINE if fingerprint is None else self._mark(b"engine", fingerprint)

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")[:_MAC]

    def _mark(self, kind: bytes, text: str) -> bytes:
        return hmac.digest(self._key, kind + b"\0" + text.encode(), "sha256")[:8]


def digest(wanted: Wanted) -> bytes:
    """Return the digest of a request, 16 bytes, independent of the order of its parameters."""
    params = {name: value for name, value in wanted.params.items() if value is not None}
    found = hashlib.blake2b(digest_size=16, person=b"asyncgen.wanted")
    for piece in pieces([wanted.source, params, wanted.events]):
        give_way()
        found.update(piece.encode())
    return found.digest()


def digest_large(wanted: Wanted) -> bytes:
    """Return the digest of a large request: on a worker thread, in time slices."""
    with slices():
        return digest(wanted)


def pieces(value: Any) -> Iterator[str]:
    """Yield the text of ``json.dumps(value, sort_keys=True)`` in pieces that are quick to make."""
    match value:
        case str() if len(value) > _PIECE:
            yield '"'
            for start in range(0, len(value), _PIECE):
                yield json.dumps(value[start : start + _PIECE])[1:-1]
            yield '"'
        case list() if value:
            before = "["
            for start in range(0, len(value), _ENTRIES):
                part = value[start : start + _ENTRIES]
                if all(isinstance(one, int | float) for one in part):
                    yield before + json.dumps(part)[1:-1]
                    before = ", "
                    continue
                for one in part:
                    yield before
                    yield from pieces(one)
                    before = ", "
            yield "]"
        case dict() if value:
            before = "{"
            for name in sorted(value):
                yield before
                yield from pieces(name)
                yield ": "
                yield from pieces(value[name])
                before = ", "
            yield "}"
        case _:
            yield json.dumps(value)
