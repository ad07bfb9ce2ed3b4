"""The wire that tests cut: what it lets through, and what it does not."""

from __future__ import annotations

import socket
import threading

import pytest

from tests.apps.websocket.relay import relaying


def test_it_forwards_holds_cuts_and_refuses() -> None:
    def echo(listener: socket.socket) -> None:
        for _ in range(2):
            wire, _ = listener.accept()
            with wire:
                while data := _read(wire):
                    wire.sendall(data.upper())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=echo, args=(listener,))
        thread.start()
        with relaying(listener.getsockname()[1]) as relay:
            one = socket.create_connection(("127.0.0.1", relay.port), 60)
            one.sendall(b"a")
            assert one.recv(9) == b"A"
            relay.cut()
            assert _read(one) == b""
            one.close()

            two = socket.create_connection(("127.0.0.1", relay.port), 60)
            relay.hold()
            two.sendall(b"b")
            two.settimeout(0.1)
            with pytest.raises(TimeoutError):
                two.recv(9)
            relay.go_on()
            two.settimeout(60)
            assert two.recv(9) == b"B"
            relay.close()
            assert _read(two) == b""
            two.close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", relay.port), 60)
            assert relay.connections == 2
        thread.join(60)
    assert not thread.is_alive()


def _read(wire: socket.socket) -> bytes:
    try:
        return wire.recv(9)
    except ConnectionResetError:
        return b""
