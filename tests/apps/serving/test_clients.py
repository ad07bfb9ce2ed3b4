"""Test the identity of a client: keys in constant time, addresses, trusted proxies, salt."""

from __future__ import annotations

import hmac
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgen_apps.serving.clients import ANYBODY, Client, Keys, Proxies
from tests.cases import for_each


@given(keys=st.lists(st.text(min_size=1), min_size=1), other=st.text())
def test_keys(keys: list[str], other: str) -> None:
    known = Keys([key for key in keys if key.isascii()])
    assert all(known.find(key) for key in keys if key.isascii())
    if other not in keys:
        assert known.find(other) is None
    assert Keys(()).find(other) is None


def test_all_keys_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def compare(given: bytes, known: bytes) -> bool:
        seen.append(known)
        return given == known

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert Keys(("a", "b", "c")).find("a") is not None
    assert len(seen) == 3
    assert {len(one) for one in seen} == {32}


def test_key_identifies_a_client_without_being_revealed() -> None:
    first, second = (Keys(("secret", "other")).find(key) for key in ("secret", "other"))
    assert first is not None
    assert second is not None
    assert first == Keys(("secret",)).find("secret") != second
    assert len({first.id, first.cache_salt, second.id, second.cache_salt}) == 4
    assert "secret" not in repr(first)
    assert first.id.removeprefix("key-") not in first.cache_salt


@for_each(
    ("remote", "forwarded_for", "client"),
    [
        ("203.0.113.7", None, "203.0.113.7"),
        ("::ffff:203.0.113.7", None, "203.0.113.7"),
        ("2001:db8:1:2:3::4", None, "2001:db8:1:2::/64"),
        ("fe80::1%eth0", None, "fe80::/64"),
        (None, None, "unix"),
        ("testclient", None, "testclient"),
        # Not from a proxy that is trusted: whoever sends it may write what they like.
        ("203.0.113.7", "198.51.100.1", "203.0.113.7"),
        (None, "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "1.1.1.1, 198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "1.1.1.1, 198.51.100.1, 10.9.9.9", "198.51.100.1"),
        ("10.0.0.1", "198.51.100.1:4711", "198.51.100.1"),
        ("10.0.0.1", "[2001:db8:1:2:3::4]:80", "2001:db8:1:2::/64"),
        ("10.0.0.1", "10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", "198.51.100.1, unknown", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("fd00::1", "198.51.100.1", "198.51.100.1"),
    ],
)
def test_addresses(remote: str | None, forwarded_for: str | None, client: str) -> None:
    proxies = Proxies(("10.0.0.0/8", "fd00::1", "unix"))
    assert proxies.client(remote, forwarded_for) == Client(client)


def test_proxies_are_trusted_only_if_listed() -> None:
    for remote in ("127.0.0.1", "10.0.0.1"):
        assert Proxies(()).client(remote, "198.51.100.1").id == remote
    assert Proxies(()).client(None, "198.51.100.1").id == "unix"


@for_each("wrong", ["proxy", "10.0.0.0/33", "*", "", "10.0.0.1/8"])
def test_proxies_that_are_none(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"trusted_proxies has .*10\.0\.0\.0/8"):
        Proxies((wrong,))


SALTS: list[Any] = [None, "a", "b", "a b", "x" * 256]


def test_salts_of_clients_never_meet() -> None:
    clients = [Keys((key,)).find(key) for key in ("k1", "k2")]
    found = [one.marked({"cache_salt": own}) for one in clients if one for own in SALTS]
    assert len({each["cache_salt"] for each in found}) == 2 * len(SALTS)
    assert len({each["client"] for each in found}) == 2


def test_without_keys_a_salt_is_as_it_was_sent() -> None:
    assert ANYBODY.marked({"seed": 1}) == {"seed": 1, "client": "anybody"}
    assert ANYBODY.marked({"cache_salt": "a"})["cache_salt"] == "a"


@pytest.mark.parametrize("wrong", ["", 7, ["a"], "x" * 257])
def test_a_salt_of_a_wrong_form_is_left_to_the_engine(wrong: Any) -> None:
    client = Keys(("k",)).find("k")
    assert client is not None
    assert client.marked({"cache_salt": wrong})["cache_salt"] == wrong
