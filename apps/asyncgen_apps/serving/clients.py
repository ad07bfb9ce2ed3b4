"""Identify the client of a request by its key, or else by its address.

The HTTP and the WebSocket server share this, so that a client is the same one in both. Knows header
values and addresses; no server.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Any

from asyncgen_apps.serving.origins import header_of

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    Address = IPv4Address | IPv6Address


UNIX = "unix"
"""Name for peers on a Unix socket among the trusted proxies."""

MAX_SALT = 256
"""Most characters of a salt that the engine accepts."""

_PREFIX_BITS = 64
"""Leading bits of an IPv6 address that all addresses of one customer share."""


@dataclass(frozen=True, slots=True)
class Client:
    """Owner of a request.

    Attributes:
        id: Name for all its requests; never its key.
        cache_salt: Requests share cached prompts only with requests of the same salt; ``""`` for
            all clients without a key.
        may_prioritise: True if it may set ``priority``, if not all clients may.
    """

    id: str
    cache_salt: str = ""
    may_prioritise: bool = False

    def marked(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a stream with its ``client`` and its ``cache_salt``.

        Args:
            params: Parameters that the client sent; its own salt is combined with that of its key.
        """
        salt = self._salted(params.get("cache_salt"))
        return {**params, "client": self.id, **({} if salt is None else {"cache_salt": salt})}

    def _salted(self, own: Any) -> Any:
        if own is None:
            return self.cache_salt or None
        if not self.cache_salt or not isinstance(own, str) or not 0 < len(own) <= MAX_SALT:
            return own  # the engine refuses another type and names the parameter
        return _digest(f"{self.cache_salt} {own}".encode(), b"asyncgen.salt").hex()

    def may_resume(self, owner: Client) -> bool:
        """Tell whether it may resume a request of ``owner``: both have the same key, or none.

        Without keys the resume token alone decides: an address proves nothing and may change.
        """
        return self.cache_salt == owner.cache_salt


ANYBODY = Client("anybody")
"""Client that was not identified."""


def bearer_key(authorization: str) -> str | None:
    """Return the key in an ``Authorization`` header, ``None`` if it has none.

    Args:
        authorization: The header; several joined by commas hold no key.
    """
    scheme, _, key = authorization.partition(" ")
    return key.strip(" \t") or None if scheme.lower() == "bearer" else None


class Keys:
    """Valid keys, compared in constant time."""

    def __init__(self, keys: Sequence[str], priority_keys: Sequence[str] = ()) -> None:
        """Keep the digests of the keys.

        Args:
            keys: All keys.
            priority_keys: Keys of clients that may set ``priority``.

        Raises:
            ValueError: A priority key is not one of the keys.
        """
        if not set(priority_keys) <= set(keys):
            raise ValueError("priority_keys: each must be one of the API keys")
        self._clients = [(_sha256(key), _client_of(key, key in priority_keys)) for key in keys]

    def __bool__(self) -> bool:
        """Return whether a key is needed."""
        return bool(self._clients)

    def find(self, key: str) -> Client | None:
        """Return the client of a key; ``None`` if the key is not valid."""
        digest = _sha256(key)
        found = None
        # Compare with all keys, so that the time does not reveal which one matches.
        for known, client in self._clients:
            if hmac.compare_digest(digest, known):
                found = client
        return found


class Proxies:
    """Proxies whose ``X-Forwarded-For`` is trusted."""

    def __init__(self, trusted: Sequence[str]) -> None:
        """Read addresses and networks.

        Args:
            trusted: Addresses and networks, such as ``"10.0.0.1"`` and ``"fd00::/8"``, or
                ``"unix"`` for every peer on a Unix socket.

        Raises:
            ValueError: Names an entry that is none of these.
        """
        self._networks: list[IPv4Network | IPv6Network] = []
        self._trusts_unix = UNIX in trusted
        for text in trusted:
            if text == UNIX:
                continue
            try:
                self._networks.append(ip_network(text))
            except ValueError:
                raise ValueError(
                    f"trusted_proxies has {text!r}: give an address such as 10.0.0.1, a network "
                    f"such as 10.0.0.0/8, or {UNIX!r}"
                ) from None

    def client(self, remote: str | None, forwarded_for: str | None) -> Client:
        """Return the client of a connection: the last hop that is not a trusted proxy.

        Args:
            remote: Address of the other end; ``None`` on a Unix socket.
            forwarded_for: ``X-Forwarded-For``; read only if a trusted proxy sends it.
        """
        nearest = None if remote is None else _address(remote)
        if nearest is None and remote is not None:
            return Client(remote)  # a name instead of an address, as some test servers give
        if forwarded_for is not None and self._trusts(nearest):
            for hop in reversed(forwarded_for.split(",")):
                address = _address(hop)
                if address is None:
                    break  # hops before an invalid one cannot be trusted
                nearest = address
                if not self._trusts(address):
                    break
        return Client(UNIX if nearest is None else _name(nearest))

    def client_of(self, scope: MutableMapping[str, Any]) -> Client:
        """Return the client of an ASGI scope by its address; all lines of the header count."""
        remote = scope.get("client")
        return self.client(remote and remote[0], header_of(scope, b"x-forwarded-for"))

    def _trusts(self, address: Address | None) -> bool:
        if address is None:
            return self._trusts_unix
        return any(address in network for network in self._networks)


def _client_of(key: str, may_prioritise: bool) -> Client:
    """Make a client with two unrelated digests of its key: names are logged, salts are not."""
    raw = key.encode()
    name, salt = _digest(raw, b"asyncgen.client"), _digest(raw, b"asyncgen.salt")
    return Client(f"key-{name.hex()[:12]}", salt.hex(), may_prioritise)


def _digest(text: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16, person=purpose).digest()


def _sha256(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="replace")).digest()


def _address(text: str) -> Address | None:
    """Read an address, perhaps with a port; return ``None`` if it is not valid."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def _name(address: Address) -> str:
    """Return the name of an address; an IPv6 customer has a network and is one client."""
    if isinstance(address, IPv4Address):
        return str(address)
    rest = 128 - _PREFIX_BITS
    return f"{IPv6Address(int(address) >> rest << rest)}/{_PREFIX_BITS}"
