"""``asyncgen serve-ws``: a model's token streams over WebSocket, and a page that chats."""

import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from asyncgen_apps.cli import access
from asyncgen_apps.cli.common_options import Debug, with_served_source
from asyncgen_apps.cli.errors import UserError, one_line_errors, require_installed
from asyncgen_apps.cli.process import prepare_process, settle
from asyncgen_apps.cli.serving import bind, run_loop, say, say_startup, warm_engine
from asyncgen_apps.cli.source import DEMO, Source
from asyncgen_apps.cli.startup import Startup

if TYPE_CHECKING:
    import signal
    import socket
    from collections.abc import AsyncIterator, Mapping

    from asyncgen_apps.websocket import StreamServer, StreamSettings


KEY_VARIABLE = "ASYNCGEN_API_KEY"
NEEDED = ("websockets", "pydantic", "prometheus_client")
KIBIBYTE = 1024


@dataclass(frozen=True, slots=True)
class _ServerOptions:
    """Settings of the server, beside the model.

    Attributes:
        settings: Settings of the server.
        allow_anonymous: True serves every client that reaches the address.
        log: Form of the log; ``None`` for warnings only.
        verbose: True prints the phases of the start.
    """

    settings: "StreamSettings"
    allow_anonymous: bool
    log: str | None
    verbose: bool


@with_served_source
def serve_ws(
    source: Source = DEMO,
    host: access.Host = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="0 takes a free one.")
    ] = 8765,
    name: Annotated[str | None, typer.Option(help="Name of the model in `hello`.")] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help=f"File of keys that let clients in, one a line. Or {KEY_VARIABLE}, which holds "
            "them apart by spaces.",
        ),
    ] = None,
    allow_anonymous: access.AllowAnonymous = False,
    origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin whose pages may connect beside our own, or *; repeatable."),
    ] = None,
    allowed_host: access.AllowedHost = None,
    trusted_proxy: access.TrustedProxy = None,
    allow_priority: access.AllowPriority = False,
    priority_key: access.PriorityKey = None,
    open_metrics: access.OpenMetrics = False,
    max_connections: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most connections; one more is closed with 1013. If not given: what the limit of "
            "open files leaves, at most 1024.",
        ),
    ] = None,
    open_seconds: Annotated[
        float, typer.Option(min=0.1, help="Seconds for the handshake, and for authentication.")
    ] = 10.0,
    max_requests: Annotated[
        int, typer.Option(min=1, help="Most requests at a time on a connection.")
    ] = 64,
    max_message: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Longest message, KiB. If not given: what the model can use, at most 1024.",
        ),
    ] = None,
    max_prompt: Annotated[
        int | None, typer.Option(min=1, help="Longest prompt, in tokens; else the context.")
    ] = None,
    max_running: access.MaxRunning = None,
    max_queue: Annotated[
        int | None, typer.Option(min=1, help="Most streams that queue; one more is refused.")
    ] = None,
    prepare_seconds: access.PrepareSeconds = None,
    grace_seconds: Annotated[
        float,
        typer.Option(min=0, help="Seconds that a request is kept after its connection or its end."),
    ] = 30.0,
    replay: Annotated[
        int, typer.Option(min=1, help="Most of a request that is kept for sending again, KiB.")
    ] = 1024,
    heartbeat_seconds: Annotated[
        float, typer.Option(min=0.1, help="Seconds between pings.")
    ] = 20.0,
    send_seconds: Annotated[
        float,
        typer.Option(min=0.1, help="Seconds after which a client that reads nothing is dropped."),
    ] = 20.0,
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds that streams may go on after SIGTERM.")
    ] = 30.0,
    resume_secret_file: access.ResumeSecretFile = None,
    log: Annotated[
        Literal["plain", "json"] | None, typer.Option(help="Log connections and requests.")
    ] = None,
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Log the prompts, too.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print the phases of the start; --log plain.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Serve token streams over WebSocket.

    Example: asyncgen serve-ws --model demo --port 8765
    """
    with one_line_errors(debug):
        require_installed(NEEDED, extra="websocket")
        prepare_process(source.threads)
        source = replace(
            source,
            max_running=max_running,
            max_queue_size=max_queue,
            prepare_seconds=prepare_seconds,
        )
        startup = Startup()

        import os

        from asyncgen_apps.serving.origins import hosts_for
        from asyncgen_apps.serving.sockets import listen
        from asyncgen_apps.websocket import StreamSettings
        from asyncgen_apps.websocket.settings import most_connections

        keys = read_keys(api_key_file, os.environ)
        access.check_reach(host, bool(keys), allow_anonymous, f"--api-key-file or {KEY_VARIABLE}")
        try:
            settings = StreamSettings(
                model_name=name or source.model,
                tokens=keys,
                origins=tuple(origin or ()),
                allowed_hosts=hosts_for(host, allowed_host or (), is_guarded=bool(keys)),
                trusted_proxies=tuple(trusted_proxy or ()),
                allow_priority=allow_priority,
                priority_keys=tuple(priority_key or ()),
                open_metrics=open_metrics,
                max_connections=max_connections or most_connections(),
                open_seconds=open_seconds,
                max_requests=max_requests,
                max_message_bytes=None if max_message is None else max_message * KIBIBYTE,
                max_prompt_tokens=max_prompt,
                replay_bytes=replay * KIBIBYTE,
                grace_seconds=grace_seconds,
                heartbeat_seconds=heartbeat_seconds,
                send_seconds=send_seconds,
                drain_seconds=drain_seconds,
                log_prompts=log_prompts,
                resume_secret=access.read_secret(resume_secret_file, os.environ),
            )
        except ValueError as error:
            raise UserError(str(error)) from None
        if log is None and (verbose or log_prompts):
            log = "plain"
        plan = _ServerOptions(settings, allow_anonymous, log, verbose)
        listener = bind(partial(listen, backlog=1024), host, port)
        run_loop(_serve, source, plan, [listener], startup)


def read_keys(file: Path | None, environ: "Mapping[str, str]") -> tuple[str, ...]:
    """Read the keys of a file and of the environment, which no list of processes shows.

    Args:
        file: One key a line; empty lines and those that begin with ``#`` are skipped.
        environ: Environment that may have the variable.

    Raises:
        UserError: The file cannot be read, or has no key in it.
    """
    keys = environ.get(KEY_VARIABLE, "").split()
    if file is None:
        return tuple(keys)
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--api-key-file {file}: {error}") from None
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise UserError(f"--api-key-file {file}: no key in it, one a line")
    return (*keys, *found)


async def _serve(
    source: Source, plan: _ServerOptions, listeners: "list[socket.socket]", startup: Startup
) -> None:
    """Load, warm up, print the address, and serve until a signal comes."""
    from asyncgen_apps.websocket import serve_websocket

    _set_up_log(plan.log)
    async with warm_engine(source, startup) as llm:
        async with serve_websocket(
            llm, settings=plan.settings, allow_anonymous=plan.allow_anonymous, sock=listeners[0]
        ) as server:
            settle()
            await _until_signal(plan, server, startup)


async def _until_signal(plan: _ServerOptions, server: "StreamServer", startup: Startup) -> None:
    """Print the address, and drain after a signal; a second signal ends all at once."""
    import signal

    import anyio

    # Before the address is printed: its reader may send a signal at once.
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
        _announce(plan, server, startup)
        await anext(received)
        async with anyio.create_task_group() as group:
            group.start_soon(_hurry, received, server)
            await server.drain()
            group.cancel_scope.cancel()


async def _hurry(received: "AsyncIterator[signal.Signals]", server: "StreamServer") -> None:
    """End all streams after a second signal."""
    async for _ in received:
        await server.drain(0)


def _set_up_log(form: str | None) -> None:
    """Send the log to standard error."""
    import logging

    from asyncgen_apps.websocket.structured_logs import JsonLines

    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(levelname)s:  %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else plain)
    log = logging.getLogger("asyncgen")
    log.addHandler(handler)
    log.setLevel(logging.INFO if form else logging.WARNING)
    # The WebSocket library logs every connection as well, in less detail.
    logging.getLogger("asyncgen.websocket.library").setLevel(logging.WARNING)


def _announce(plan: _ServerOptions, server: "StreamServer", startup: Startup) -> None:
    """Print the address of the server."""
    if plan.verbose:
        say_startup(startup)
    page = "http" + server.url.removeprefix("ws").removesuffix("/v1/stream")
    say(f"serving {plan.settings.model_name} at {server.url}, page at {page}")
