"""Identify the client of a request by its key, or else by its address.

Both servers ask here, so that a client is the same one at each of their doors. Knows header values
and addresses; no request.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Address = IPv4Address | IPv6Address


UNIX = "unix"
"""What a proxy on a Unix socket is called among the trusted ones."""

MAX_SALT = 256
"""Characters of a salt, as the engine takes it."""

_NEIGHBOURS = 64
"""Leading bits of an IPv6 address that all addresses of one customer have in common."""


@dataclass(frozen=True, slots=True)
class Client:
    """Whom a request belongs to.

    Attributes:
        id: Its name, the same for all requests of a client; never its key.
        cache_salt: Its requests share what was computed of a prompt only with those of the same
            salt; ``""`` is shared by all who came without a key.
        may_prioritise: Whether it may say which of its requests goes first, where not all may.
    """

    id: str
    cache_salt: str = ""
    may_prioritise: bool = False

    def marked(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Add to the parameters of a stream whom it belongs to, and with whom it shares.

        Args:
            params: As the client sent them. A salt of its own narrows that of its key.
        """
        salt = self._salted(params.get("cache_salt"))
        return {**params, "client": self.id, **({} if salt is None else {"cache_salt": salt})}

    def _salted(self, own: Any) -> Any:
        if own is None:
            return self.cache_salt or None
        if not self.cache_salt or not isinstance(own, str) or not 0 < len(own) <= MAX_SALT:
            return own  # of another form the engine refuses it, by its name
        return _digest(f"{self.cache_salt} {own}".encode(), b"asyncgen.salt").hex()

    def may_resume(self, owner: Client) -> bool:
        """Tell whether it may resume a request of ``owner``: both have the same key, or none.

        An address proves nothing, and a phone changes it: without keys the resume token must do.
        """
        return self.cache_salt == owner.cache_salt


ANYBODY = Client("anybody")
"""Where nobody has looked who is there."""


class Keys:
    """The keys that are good; comparing takes the same time whatever the key."""

    def __init__(self, keys: Sequence[str], priority_keys: Sequence[str] = ()) -> None:
        """Keep the digests of the keys.

        Args:
            keys: All of them.
            priority_keys: Those whose requests may say which goes first.

        Raises:
            ValueError: One of these is none of the keys.
        """
        if not set(priority_keys) <= set(keys):
            raise ValueError("priority_keys: each must be one of the API keys")
        self._clients = [(_sha256(key), _client_of(key, key in priority_keys)) for key in keys]

    def __bool__(self) -> bool:
        """Return whether a key is needed."""
        return bool(self._clients)

    def find(self, key: str) -> Client | None:
        """Compare a key with all of ours.

        Returns:
            Whose it is; ``None`` if it is not valid.
        """
        digest = _sha256(key)
        found = None
        # All are compared: which one it is, or that the first differs, must not show in the time.
        for known, client in self._clients:
            if hmac.compare_digest(digest, known):
                found = client
        return found


class Proxies:
    """The proxies whose word about an address is taken."""

    def __init__(self, trusted: Sequence[str]) -> None:
        """Read addresses and networks.

        Args:
            trusted: Such as ``"10.0.0.1"``, ``"fd00::/8"``, or ``"unix"`` for whoever comes over
                a Unix socket.

        Raises:
            ValueError: Names what is none of these.
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
        """Say who is there.

        Args:
            remote: Address of the other end; ``None`` on a Unix socket.
            forwarded_for: ``X-Forwarded-For``; read only if a trusted proxy sends it.

        Returns:
            The last hop that is no trusted proxy.
        """
        nearest = None if remote is None else _address(remote)
        if nearest is None and remote is not None:
            return Client(remote)  # a server that tells names, such as a test's
        if forwarded_for is not None and self._trusts(nearest):
            for hop in reversed(forwarded_for.split(",")):
                address = _address(hop)
                if address is None:
                    break  # what stands in front of nonsense is no more than a claim
                nearest = address
                if not self._trusts(address):
                    break
        return Client(UNIX if nearest is None else _name(nearest))

    def _trusts(self, address: Address | None) -> bool:
        if address is None:
            return self._trusts_unix
        return any(address in network for network in self._networks)


def _client_of(key: str, may_prioritise: bool) -> Client:
    """Two digests that tell nothing of each other: names are logged, salts are not."""
    raw = key.encode()
    name, salt = _digest(raw, b"asyncgen.client"), _digest(raw, b"asyncgen.salt")
    return Client(f"key-{name.hex()[:12]}", salt.hex(), may_prioritise)


def _digest(text: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16, person=purpose).digest()


def _sha256(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="replace")).digest()


def _address(text: str) -> Address | None:
    """Read an address, perhaps with a port as some proxies write it; ``None`` if it is none."""
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
    """An IPv6 customer has a network of addresses, and is one client."""
    if isinstance(address, IPv4Address):
        return str(address)
    rest = 128 - _NEIGHBOURS
    return f"{IPv6Address(int(address) >> rest << rest)}/{_NEIGHBOURS}"
