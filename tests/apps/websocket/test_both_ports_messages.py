"""Frames and messages of every shape get the same answer on both ports."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pytest
from websockets.frames import Opcode

from asyncgen_apps.websocket.errors import Fault
from asyncgen_apps.websocket.frames import read, read_large
from tests.apps.openai_http.running import Running, running
from tests.apps.websocket.test_both_ports import endless
from tests.apps.websocket.wires import (
    LOOPS,
    MASK,
    PORTS,
    BrokenWire,
    Wire,
    frames,
    is_on_uvloop,
    odd_frame,
    opened,
    read_all,
)
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", params=LOOPS)
def one(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(endless, max_connections=8, max_requests=8, uvloop=is_on_uvloop(request)) as found:
        yield found


def text(data: bytes, *, fin: bool = True) -> bytes:
    return odd_frame(0x81 if fin else 0x01, data)


def rest(data: bytes, *, fin: bool = True) -> bytes:
    return odd_frame(0x80 if fin else 0x00, data)


def close(code: int, reason: bytes = b"") -> bytes:
    return odd_frame(0x88, struct.pack("!H", code) + reason)


def promised(count: int) -> bytes:
    """The head of a frame that says it has so many bytes, in a field of 64 bits."""
    return b"\x81\xff" + struct.pack("!Q", count) + MASK


ENDING: dict[str, tuple[bytes, int]] = {
    "first reserved bit, as of compression": (odd_frame(0xC1, b"hi"), 1002),
    "second reserved bit": (odd_frame(0xA1, b"hi"), 1002),
    "third reserved bit": (odd_frame(0x91, b"hi"), 1002),
    "reserved bit of a ping": (odd_frame(0xC9), 1002),
    "reserved opcode": (odd_frame(0x83), 1002),
    "reserved control opcode": (odd_frame(0x8B), 1002),
    "last opcode": (odd_frame(0x8F), 1002),
    "unmasked": (odd_frame(0x81, b"hi", masked=False), 1002),
    "unmasked ping": (odd_frame(0x89, masked=False), 1002),
    "rest of nothing": (rest(b"hi"), 1002),
    "middle of nothing": (rest(b"hi", fin=False), 1002),
    "rest behind a message": (text(b"{}") + rest(b"hi"), 1002),
    "text inside of a text": (text(b"a", fin=False) + text(b"b"), 1002),
    "bytes inside of a text": (text(b"a", fin=False) + odd_frame(0x82, b"b"), 1002),
    "close inside of a text": (text(b"a", fin=False) + close(1000), 1002),
    "ping in parts": (odd_frame(0x09, b"hi"), 1002),
    "ping of 126 bytes": (odd_frame(0x89, b"x" * 126), 1002),
    "pong of 126 bytes": (odd_frame(0x8A, b"x" * 126), 1002),
    "close of 126 bytes": (close(1000, b"x" * 124), 1002),
    "ping of many bytes": (odd_frame(0x89, b"x", length=8)[:2] + b"\xff" * 8 + MASK, 1009),
    "highest bit of the length": (promised(2**63), 1009),
    "all bits of the length": (promised(2**64 - 1), 1009),
    "a terabyte": (promised(2**40), 1009),
    "close of one byte": (odd_frame(0x88, b"\x03"), 1002),
    "code of nobody": (close(0), 1002),
    "code below all": (close(999), 1002),
    "code that is reserved": (close(1004), 1002),
    "code of no code": (close(1005), 1002),
    "code of a broken connection": (close(1006), 1002),
    "code above all": (close(5000), 1002),
    "reason that is no text": (close(1000, b"\xff"), 1007),
    "no text": (text(b"\xff"), 1007),
    "no text, across frames": (text(b'{"\xc3', fin=False) + rest(b'("'), 1007),
    "half a character at the end": (text(b'{"\xc3', fin=False) + rest(b""), 1007),
    "surrogate": (text(b'"\xed\xa0\x80"'), 1007),
    "overlong zero": (text(b'"\xc0\x80"'), 1007),
    "beyond Unicode": (text(b'"\xf4\x90\x80\x80"'), 1007),
    "UTF-16": (text('{"type":"ping","nonce":"ü"}'.encode("utf-16")), 1007),
    "Latin 1": (text('{"type":"ping","nonce":"ü"}'.encode("latin-1")), 1007),
}


@for_each("port", PORTS)
@for_each("name", ENDING)
def test_frame_that_ends_the_connection(one: Running, port: str, name: str) -> None:
    data, code = ENDING[name]
    with Wire(one, port) as wire:
        wire.socket.sendall(data)
        with pytest.raises(BrokenWire) as told:
            while True:
                assert wire.get()["type"] == "error"
        assert told.value.args == (code,), (port, told.value)


PING = b'{"type":"ping","nonce":"%s"}'
HARMLESS: dict[str, tuple[bytes, str]] = {
    "ping inside of a text": (
        text(PING[:9], fin=False) + odd_frame(0x89, b"p") + rest(PING[9:] % b"a"),
        "a",
    ),
    "character across frames": (
        text(b'{"type":"ping","nonce":"\xc3', fin=False) + rest(b'\xa4"}'),
        "ä",
    ),
    "empty parts": (text(b"", fin=False) + rest(b"", fin=False) * 99 + rest(PING % b"a"), "a"),
    "length in too many bytes": (odd_frame(0x81, PING % b"a", length=2), "a"),
    "length in far too many bytes": (odd_frame(0x81, PING % b"a", length=8), "a"),
    "ping with a long length": (odd_frame(0x89, b"x", length=2) + text(PING % b"a"), "a"),
    "pong that nobody asked for": (frames(Opcode.PONG, 3, b"x") + text(PING % b"a"), "a"),
    "zero character": (text(PING % b"a\\u0000b"), "a\0b"),
}


@for_each("port", PORTS)
@for_each("name", HARMLESS)
def test_frames_that_are_odd_and_allowed(one: Running, port: str, name: str) -> None:
    data, nonce = HARMLESS[name]
    with Wire(one, port) as wire:
        wire.socket.sendall(data)
        assert wire.get() == {"type": "pong", "nonce": nonce}


@for_each("port", PORTS)
@for_each("data", [close(1000), close(1001, b"bye"), close(4999), odd_frame(0x88)])
def test_closes_are_answered(one: Running, port: str, data: bytes) -> None:
    with opened(one, port) as wire:
        wire.sendall(data + b"\xff" * 5000)
        received = read_all(wire)
    assert received.endswith(data[:1] + bytes([len(data) - 6]) + data[6:])


HALF = "\\ud83d"
LONG = "k" * 50_000
IDS = ("null", "true", "0", "1.5", "1e3", "9" * 400, "[]", "{}", '["a"]', '{"a": "b"}', '""', "NaN")
NO_IDS = [f'{{"type": "cancel", "id": {value}}}' for value in IDS]
NO_IDS += [f'{{"type": "generate", "token_ids": [1], "id": {value}}}' for value in IDS]
NO_IDS += [f'{{"type": "resume", "resume_token": "x", "after": 0, "id": {value}}}' for value in IDS]


def generate(**fields: Any) -> str:
    return json.dumps({"type": "generate", "id": "a", "token_ids": [1], **fields})


def raw(params: str) -> str:
    return f'{{"type": "generate", "id": "a", "token_ids": [1], "params": {params}}}'


CHAT = '{"type": "generate", "id": "a", "messages": [{"role": "user", "content": %s}]}'
RESUME = '{"type": "resume", "id": "a", "resume_token": "x", "after": 0%s}'
MESSAGES: dict[str, tuple[str, str]] = {
    "key twice": ('{"type": "ping", "nonce": 1, "nonce": 1}', "invalid_json"),
    "type twice": ('{"type": "ping", "type": "ping", "nonce": 1}', "invalid_json"),
    "key twice, once escaped": ('{"type": "ping", "nonce": 1, "n\\u006fnce": 2}', "invalid_json"),
    "parameter twice": (raw('{"seed": 1, "seed": 2}'), "invalid_json"),
    "key of a list's entry twice": (raw('{"stop": [{"a": 1, "a": 1}]}'), "invalid_json"),
    "key twice beside colons": (raw('{"stop": ":::", "seed": 1, "seed": 2}'), "invalid_json"),
    "key of a message twice": (CHAT % '"a", "content": "b"', "invalid_json"),
    "key of a part twice": (CHAT % '[{"text": "a", "text": "b"}]', "invalid_json"),
    "place twice": (RESUME % ', "after": 1', "invalid_json"),
    "prompt of a resume twice": (
        RESUME % ', "request": {"prompt": "a", "prompt": "b"}, "generated_ids": [[]],'
        ' "positions": [0]',
        "invalid_json",
    ),
    "long key twice": (raw(f'{{"{LONG}": 1, "{LONG}": 1}}'), "invalid_json"),
    "half a character": (f'{{"type": "ping", "nonce": "{HALF}"}}', "invalid_json"),
    "half a character as a key": (
        f'{{"type": "ping", "nonce": 1, "{HALF}": 1}}',
        "invalid_json",
    ),
    "half a character as an id": (f'{{"type": "cancel", "id": "{HALF}"}}', "invalid_json"),
    "half a character as a token": (
        f'{{"type": "resume", "id": "a", "resume_token": "{HALF}", "after": 0}}',
        "invalid_json",
    ),
    "half a character in a list": (raw(f'{{"stop": ["a", "{HALF}"]}}'), "invalid_json"),
    "half a character as a parameter": (raw(f'{{"{HALF}": 1}}'), "invalid_json"),
    "half a character in a part": (CHAT % f'[{{"text": "{HALF}"}}]', "invalid_json"),
    "half a character as a part's key": (CHAT % f'[{{"{HALF}": {{"b": 1}}}}]', "invalid_json"),
    "zero byte": ('{"type": "ping", "nonce": "\0"}', "invalid_json"),
    "zero byte alone": ("\0", "invalid_json"),
    "byte order mark": ('\ufeff{"type": "ping", "nonce": 1}', "invalid_json"),
    "nothing": ("", "invalid_json"),
    "long name": (generate(**{LONG: 1}), "invalid_message"),
    "name with a zero": (generate(**{"\0": 1}), "invalid_message"),
    "name in a resume": (
        RESUME % ', "request": {"prompt": "a", "a b": 1}, "generated_ids": [[]], "positions": [0]',
        "invalid_message",
    ),
    "long type": (json.dumps({"type": LONG}), "unknown_type"),
    "long word": (generate(events=LONG), "invalid_message"),
    "long id": (generate(id=LONG), "invalid_message"),
    "long token": (RESUME.replace('"x"', f'"{LONG}"') % "", "invalid_message"),
    "long parameter": (generate(params={LONG: 1}), "invalid_request"),
    "long key of a parameter": (
        generate(params={"watermarking_config": {LONG: 1}}),
        "invalid_request",
    ),
    "long value": (generate(params={"seed": LONG}), "invalid_request"),
    "long choice": (generate(params={"context_overflow": LONG}), "invalid_request"),
    "long pattern": (generate(params={"regex": f"({LONG}"}), "invalid_request"),
    "long grammar": (generate(params={"grammar": LONG}), "invalid_request"),
    "long kind of a schema": (generate(params={"json_schema": {"type": LONG}}), "invalid_request"),
    "long number": (raw('{"seed": ' + "9" * 4_000 + "}"), "invalid_request"),
    **{message: (message, "invalid_message") for message in NO_IDS},
}


@for_each("port", PORTS)
@for_each("name", MESSAGES)
def test_refused_message_gets_a_short_error_alone(one: Running, port: str, name: str) -> None:
    message, code = MESSAGES[name]
    with Wire(one, port) as wire:
        wire.send_frame(Opcode.TEXT, message.encode())
        answer = wire.get()
        assert (answer["type"], answer["code"]) == ("error", code), (port, answer)
        assert "``" not in answer["message"]
        assert len(json.dumps(answer)) < 1_000
        assert wire.ask(type="ping", nonce=1)["type"] == "pong"


@for_each("name", MESSAGES)
def test_large_message_is_refused_like_a_small_one(name: str) -> None:
    message, code = MESSAGES[name]
    small, large = read(message), read_large(message)
    if code == "invalid_request":
        return  # the engine refuses it
    assert isinstance(small, Fault)
    assert isinstance(large, Fault)
    assert (small.code, small.param, small.id) == (large.code, large.param, large.id)
