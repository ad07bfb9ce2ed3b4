"""Authenticate clients by bearer token, host, and origin of a web page. Knows only headers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen_apps.serving.clients import Client, Keys, Proxies, bearer_key
from asyncgen_apps.serving.origins import is_own_origin
from asyncgen_apps.websocket.errors import BAD_TOKEN, Fault

if TYPE_CHECKING:
    from asyncgen_apps.websocket.settings import StreamSettings


class Authenticator:
    """Decides which clients may connect."""

    def __init__(self, settings: StreamSettings) -> None:
        """Keep the digests of the tokens, and the allowed origins."""
        self._keys = Keys(settings.tokens, settings.priority_keys)
        self._proxies = Proxies(settings.trusted_proxies)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.origins)

    @property
    def needs_token(self) -> bool:
        """True if a client must send a token."""
        return bool(self._keys)

    def find(self, token: str) -> Client | None:
        """Return the client of a token, or ``None``; compares it with all valid tokens."""
        return self._keys.find(token)

    def address(self, remote: str | None, forwarded_for: str | None) -> Client:
        """Return the client of an address, for as long as no token says more.

        Args:
            remote: Address of the other end; ``None`` on a Unix socket.
            forwarded_for: ``X-Forwarded-For``.
        """
        return self._proxies.client(remote, forwarded_for)

    def admit(
        self,
        authorization: str | None,
        origin: str | None,
        host: str | None,
        *,
        remote: str | None = None,
        forwarded_for: str | None = None,
    ) -> Client | Fault | None:
        """Check the headers of a handshake.

        Args:
            authorization: ``Authorization``.
            origin: ``Origin``, which browsers send and other clients do not.
            host: ``Host``.
            remote: Address of the other end; ``None`` on a Unix socket.
            forwarded_for: ``X-Forwarded-For``.

        Returns:
            The client; ``None`` if it may still authenticate by an ``auth`` message; a fault if
            the connection is refused.
        """
        if origin is not None and not self._allows(origin, host):
            return Fault("bad_origin", "pages of this origin may not connect; see --origin")
        if not self.needs_token:
            return self.address(remote, forwarded_for)
        if authorization is None:
            return None
        client = self.client_of(authorization)
        return client or BAD_TOKEN

    def client_of(self, authorization: str | None) -> Client | None:
        """Return the client of an ``Authorization`` header, or ``None``."""
        token = bearer_key(authorization or "")
        return None if token is None else self.find(token)

    def _allows(self, origin: str, host: str | None) -> bool:
        if "*" in self._origins or origin.lower() in self._origins:
            return True
        return is_own_origin(origin, host)
