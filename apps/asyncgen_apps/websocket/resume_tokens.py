"""Sign and read resume tokens, by which another server can resume a request.

A token is handed to the client and comes back, so a server that shares the secret needs nothing of
the one that is gone. It says whose the request is, what was asked for (as a digest), with which
seed, on what engine and since when; it says nothing of the text. The signature is HMAC-SHA-256
(RFC 2104), cut to 16 bytes. Knows no connection and no engine.
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
"""Characters of a secret, at least."""

SECRET_VARIABLE = "ASYNCGEN_RESUME_SECRET"
"""Of the environment: has the secret where nothing else says it."""

UNKNOWN = bytes(8)
"""The mark of an engine that promises nothing."""

_FORM = struct.Struct(">B12sdq8s8s16s")
_VERSION = 1
_MAC = 16
_PIECE = 2**16
"""Characters that are written at one blow."""
_ENTRIES = 2**10
"""Numbers likewise."""
_LATER = 300.0
"""Seconds by which the clock of another server may be ahead."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """Content of a resume token.

    Attributes:
        began: When the request was accepted first, in seconds since 1970.
        seed: Of its draws.
        owner: Mark of the client.
        engine: Mark of the fingerprint that all its tokens are from; ``UNKNOWN`` promises nothing.
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
            secret: Shared by the servers that take each other's requests up; empty draws one.
            clock: Seconds since 1970.
        """
        text = secret.encode() if secret else secrets.token_bytes(32)
        self._key = hashlib.sha256(b"asyncgen.resume" + text).digest()
        self.clock = clock

    def sign(self, ticket: Ticket) -> str:
        """Make a token; two of the same ticket differ."""
        name = secrets.token_bytes(12)
        fields = (ticket.began, ticket.seed, ticket.owner, ticket.engine, ticket.wanted)
        body = _FORM.pack(_VERSION, name, *fields)
        return urlsafe_b64encode(body + self._mac(body)).rstrip(b"=").decode()

    def read(self, token: str) -> Ticket | None:
        """Read one; ``None`` if it was not signed with this secret, or was changed."""
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
        return Ticket(began, seed, owner, engine, wanted)

    def owner(self, client: Client) -> bytes:
        """The mark of a client: its key, as far as it has one."""
        return self._mark(b"owner", client.cache_salt)

    def engine(self, fingerprint: str | None) -> bytes:
        """The mark of an engine."""
        return UNKNOWN if fingerprint is None else self._mark(b"engine", fingerprint)

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")[:_MAC]

    def _mark(self, kind: bytes, text: str) -> bytes:
        return hmac.digest(self._key, kind + b"\0" + text.encode(), "sha256")[:8]


def digest(wanted: Wanted) -> bytes:
    """The digest of a request: 16 bytes, whatever the order of its parameters."""
    params = {name: value for name, value in wanted.params.items() if value is not None}
    found = hashlib.blake2b(digest_size=16, person=b"asyncgen.wanted")
    for piece in pieces([wanted.source, params, wanted.events]):
        give_way()
        found.update(piece.encode())
    return found.digest()


def digest_large(wanted: Wanted) -> bytes:
    """The same on a worker thread, in slices."""
    with slices():
        return digest(wanted)


def pieces(value: Any) -> Iterator[str]:
    """The text of ``json.dumps(value, sort_keys=True)``, no piece of which takes long to make."""
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
