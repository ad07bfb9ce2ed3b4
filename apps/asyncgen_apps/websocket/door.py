"""Who is let in: bearer tokens, compared in constant time, and the origins of web pages.

Knows header values; not where they come from.
"""

from __future__ import annotations

import hashlib
import hmac
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from asyncgen_apps.websocket.failures import Fault

if TYPE_CHECKING:
    from asyncgen_apps.websocket.settings import StreamSettings


_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class Door:
    """Decides about a handshake."""

    def __init__(self, settings: StreamSettings) -> None:
        """Keep digests of the tokens, and the origins."""
        self._digests = [_digest(token) for token in settings.tokens]
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.origins)

    @property
    def needs_token(self) -> bool:
        """Whether a client must show a token."""
        return bool(self._digests)

    def accepts(self, token: str) -> bool:
        """Compare a token with all of ours."""
        digest = _digest(token)
        # All are compared: which one it is, or that the first differs, must not show in the time.
        matches = [hmac.compare_digest(digest, one) for one in self._digests]
        return any(matches)

    def admit(
        self, authorization: str | None, origin: str | None, host: str | None
    ) -> bool | Fault:
        """Look at the headers of a handshake.

        Args:
            authorization: ``Authorization``.
            origin: ``Origin``, which browsers send and other clients do not.
            host: ``Host``.

        Returns:
            Whether the client is let in already; it may still send an ``auth`` if not. A fault
            where it may not.
        """
        if origin is not None and not self._welcomes(origin, host):
            return Fault("bad_origin", "pages of this origin may not connect; see --origin")
        if not self.needs_token:
            return True
        if authorization is None:
            return False
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() == "bearer" and self.accepts(token.strip()):
            return True
        return Fault("unauthorized", "this token is not valid")

    def _welcomes(self, origin: str, host: str | None) -> bool:
        if "*" in self._origins or origin.lower() in self._origins:
            return True
        place = _place(origin)
        if place is None or host is None:
            return False
        # The page's scheme says which port its host means; behind a proxy ours may be another.
        return place == _place(f"{origin.partition(':')[0]}://{host}")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens there."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False  # a name may mean any address


def _place(url: str) -> tuple[str, int | None] | None:
    """Host and port that a URL means."""
    try:
        parts = urlsplit(url.lower())
        if parts.hostname is None:
            return None
        return parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
