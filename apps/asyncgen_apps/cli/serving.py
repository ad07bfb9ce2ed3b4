"""Start a server: open its sockets, run its loop, print the phases of its start."""

from __future__ import annotations

import sys
from contextlib import ExitStack, asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from asyncgen_apps.cli.errors import UserError

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from asyncgen_apps.cli.source import Source
    from asyncgen_apps.cli.startup import Startup
    from asyncgen_apps.engine import Engine


def bind(listen: Callable[[str, int], socket.socket], host: str, port: int) -> socket.socket:
    """Open a socket; clients may connect from now on, and wait.

    Args:
        listen: Opens a socket that listens.
        host: Address to listen on.
        port: Port; 0 chooses one.

    Raises:
        UserError: The system refuses the address or the port.
    """
    try:
        return listen(host, port)
    except OSError as error:
        message = f"cannot listen on {host}:{port}: {error.strerror}; see --host and --port"
        raise UserError(message) from None


def run_loop(
    serve: Callable[..., Awaitable[Any]],
    source: Source,
    plan: object,
    listeners: Sequence[socket.socket],
    startup: Startup,
) -> None:
    """Run a server; with uvloop if it is installed, which halves the cost of a stream.

    Args:
        serve: Coroutine function that takes the other arguments.
        source: Model to serve.
        plan: Settings of the server.
        listeners: Open sockets; they are closed at the end.
        startup: Gets the time of each phase.
    """
    import anyio
    import torch  # noqa: F401 - before there is a loop to wait for it

    startup.lap("import")
    options = {"use_uvloop": find_spec("uvloop") is not None}
    with ExitStack() as stack:
        for listener in listeners:
            stack.enter_context(listener)
        anyio.run(serve, source, plan, listeners, startup, backend_options=options)


@asynccontextmanager
async def warm_engine(source: Source, startup: Startup) -> AsyncIterator[Engine]:
    """Load a model, and generate a token, so that no client waits for work of the first use.

    Args:
        source: Choice of the model.
        startup: Gets the time of each phase.
    """
    from asyncgen_apps.cli.loading import opened

    async with opened(source) as llm:
        startup.lap("load")
        await llm.generate([1], max_new_tokens=1)
        startup.lap("first token")
        yield cast("Engine", llm)


def say(text: str) -> None:
    """Print a line on standard error at once."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def say_startup(startup: Startup) -> None:
    """Print the phases of the start, and the kernels that compute."""
    from asyncgen import cpu_kernels

    say(startup.line())
    say(f"kernels on the CPU: {cpu_kernels()}")
