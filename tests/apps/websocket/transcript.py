"""Plays a committed conversation against a server and compares what comes with what is written.

A transcript is a JSON file: ``about``, ``server`` (settings it needs, see ``test_transcripts``) and
``steps``. ``transcript.mjs`` plays the same files from Node; the two must understand the same.

Steps, each on the connection named by ``on`` (``"a"`` if it says nothing):

- ``{"connect": true}`` opens it.
- ``{"send": message}``; or ``{"raw": text}``, where ``[part, count]`` repeats a part, in the text
  and in lists of such; or ``{"binary": [bytes]}``. ``times`` does it so often.
- ``{"expect": message}``: the next message but deltas is this one, ``times`` so often; of a list of
  messages all come, in any order.
- ``{"deltas": n, "of": id}``: so many deltas of a request come.
- ``{"same": [value, value]}`` compares what was remembered.
- ``{"close": code}`` leaves; ``{"expect_close": code}`` waits until the server does.

Deltas are collected whenever they come: their numbers must have no gap, also over a resume, and the
end of a request has the next number. ``"$=id.text"`` and ``"$=id.seq"`` are what came so far.

In messages, ``"$=name"`` is remembered where it comes first, and the same from then on;
``"$string"``, ``"$integer"``, ``"$number"``, ``"$boolean"``, ``"$any"`` are of that type, with
``?`` also null. A key ending in ``?`` may be absent. All else is compared to the letter, and
nothing may be left over.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

PATIENCE = 60.0
SUBPROTOCOL = "asyncgen.v1"
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "any": (object,),
}


class Mismatch(AssertionError):
    """Message that differs from the transcript."""


class Player:
    """Plays one transcript."""

    def __init__(self, url: str, **options: Any) -> None:
        """Prepare; ``play`` connects.

        Args:
            url: Of the server.
            **options: Of the connections, as ``connect`` takes them; calls are made for each.
        """
        self.url = url
        self.options = options
        self.names: dict[str, Any] = {}
        self.sockets: dict[str, ClientConnection] = {}

    def play(self, steps: list[dict[str, Any]]) -> None:
        """Play all steps, and close whatever is open.

        Raises:
            Mismatch: At the first step that went otherwise; says which.
        """
        with ExitStack() as stack:
            for number, step in enumerate(steps):
                try:
                    self._step(step, stack)
                except (Mismatch, TimeoutError, ConnectionClosed) as error:
                    raise Mismatch(f"step {number} {json.dumps(step)[:200]}: {error!r}") from error

    def _step(self, step: dict[str, Any], stack: ExitStack) -> None:
        on = step.get("on", "a")
        if "connect" in step:
            self.sockets[on] = stack.enter_context(opened(self.url, **self.options))
            return
        if "same" in step:
            one, other = self._fill(step["same"])
            self._match(one, other, "value")
            return
        socket = self.sockets[on]
        for _ in range(step.get("times", 1)):
            if "send" in step:
                socket.send(json.dumps(self._fill(step["send"])))
            elif "raw" in step:
                socket.send(repeated(step["raw"]))
            elif "binary" in step:
                socket.send(bytes(step["binary"]))
            elif "expect" in step:
                self._expect(socket, step["expect"])
            elif "deltas" in step:
                for _ in range(step["deltas"]):
                    self._collect(self._receive(socket), step["of"])
            elif "close" in step:
                self.sockets.pop(on).close(step["close"])
            elif "expect_close" in step:
                self._match(step["expect_close"], closed(self.sockets.pop(on)), "close code")
            else:
                raise Mismatch("no such step")

    def _receive(self, socket: ClientConnection) -> Any:
        return json.loads(socket.recv(PATIENCE))

    def _expect(self, socket: ClientConnection, wanted: Any) -> None:
        if not isinstance(wanted, list):
            kind = wanted.get("type") if isinstance(wanted, dict) else None
            self._match(wanted, self._next(socket, kind), "message")
            return
        left = list(wanted)
        while left:
            message, reasons = self._next(socket), []
            for one in left:
                names = dict(self.names)
                try:
                    self._match(one, message, "message")
                except Mismatch as error:
                    self.names = names
                    reasons.append(str(error))
                else:
                    left.remove(one)
                    break
            else:
                raise Mismatch("; ".join(reasons))

    def _next(self, socket: ClientConnection, kind: str | None = None) -> Any:
        """The next message, deltas only if one is asked for."""
        while True:
            message = self._receive(socket)
            if message.get("type") == "delta":
                self._collect(message, message.get("id"))
                if kind != "delta":
                    continue
            elif message.get("type") == "done":
                self._count(message)
            elif message.get("type") == "accepted":
                self._open(message["id"])
            return message

    def _open(self, name: str) -> None:
        """A request of a name that ended begins anew; one that was cut goes on."""
        if self.names.get(f"$={name}.ended", True):
            self.names.update({f"$={name}.seq": 0, f"$={name}.text": ""})
        self.names[f"$={name}.ended"] = False

    def _count(self, message: dict[str, Any]) -> None:
        """Check that no number was left out."""
        seen = self.names[f"$={message['id']}.seq"]
        if message.get("first_seq", message["seq"]) != seen + 1:
            raise Mismatch(f"number {message['seq']} came after {seen}: {message}")
        self.names[f"$={message['id']}.seq"] = message["seq"]
        self.names[f"$={message['id']}.ended"] = message["type"] == "done"

    def _collect(self, message: dict[str, Any], name: Any) -> None:
        if message.get("type") != "delta" or message["id"] != name:
            raise Mismatch(f"no delta of {name!r}: {message}")
        self._count(message)
        self.names[f"$={name}.text"] += message["text"]

    def _fill(self, value: Any) -> Any:
        """Put in what was remembered."""
        if isinstance(value, str) and value.startswith("$="):
            return self.names[value]
        if isinstance(value, list):
            return [self._fill(one) for one in value]
        if isinstance(value, dict):
            return {key: self._fill(one) for key, one in value.items()}
        return value

    def _match(self, wanted: Any, value: Any, where: str) -> None:
        if isinstance(wanted, list) and isinstance(value, list) and len(wanted) == len(value):
            for number, (one, other) in enumerate(zip(wanted, value, strict=True)):
                self._match(one, other, f"{where}[{number}]")
            return
        if isinstance(wanted, str) and wanted.startswith("$"):
            if wanted.startswith("$="):
                wanted = self.names.setdefault(wanted, value)
            elif fits(wanted, value):
                return
        if isinstance(wanted, dict) and isinstance(value, dict):
            keys = {key.removesuffix("?"): key for key in wanted}
            for key in sorted(keys.keys() | value.keys()):
                if key not in keys:
                    raise Mismatch(f"{where}.{key} is not expected: {value}")
                if key in value:
                    self._match(wanted[keys[key]], value[key], f"{where}.{key}")
                elif not keys[key].endswith("?"):
                    raise Mismatch(f"{where}.{key} is missing: {value}")
            return
        if wanted != value or isinstance(wanted, bool) != isinstance(value, bool):
            raise Mismatch(f"{where} is {value!r}, not {wanted!r}")


def opened(url: str, **options: Any) -> AbstractContextManager[ClientConnection]:
    """A connection that speaks the protocol, to be used as a context manager."""
    offered = [Subprotocol(SUBPROTOCOL)]
    calls = {name: value() if callable(value) else value for name, value in options.items()}
    return connect(url, subprotocols=offered, compression=None, proxy=None, max_size=None, **calls)


def fits(kind: str, value: object) -> bool:
    """Tell whether a value has the type that a placeholder names."""
    name = kind.removeprefix("$").removesuffix("?")
    if value is None:
        return kind.endswith("?")
    if name != "any" and isinstance(value, bool) != (name == "boolean"):
        return False
    return isinstance(value, TYPES[name])


def repeated(raw: Any) -> str:
    """Write out a text; ``[part, count]`` is repeated, other lists are joined."""
    if isinstance(raw, str):
        return raw
    if len(raw) == 2 and isinstance(raw[1], int):
        return repeated(raw[0]) * int(raw[1])
    return "".join(map(repeated, raw))


def closed(socket: ClientConnection) -> int | None:
    """Wait until the server closes, and return its code."""
    try:
        while True:
            message = socket.recv(PATIENCE)
            raise Mismatch(f"a message in place of the close: {message!r}")
    except ConnectionClosed as error:
        return None if error.rcvd is None else error.rcvd.code
