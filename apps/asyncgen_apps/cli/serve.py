"""``asyncgen serve``: a model behind the API of OpenAI, for any client of that API."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from asyncgen_apps.cli import access
from asyncgen_apps.cli.common_options import Debug, with_served_source
from asyncgen_apps.cli.errors import UserError, one_line_errors, require_installed
from asyncgen_apps.cli.process import prepare_process, settle
from asyncgen_apps.cli.serving import bind, run_loop, say, say_startup, warm_engine
from asyncgen_apps.cli.source import DEMO, Source, examples_of
from asyncgen_apps.cli.startup import Startup

if TYPE_CHECKING:
    import socket

    from asyncgen_apps.openai_http import ServerSettings
    from asyncgen_apps.websocket import StreamSettings


NEEDED = ("fastapi", "uvicorn", "websockets")


@dataclass(frozen=True, slots=True)
class _ServerOptions:
    """Settings of the server, beside the model.

    Attributes:
        settings: Settings of the application.
        streams: Settings of the streams over WebSocket.
        notice_seconds: Time after a signal in which new requests are still taken.
        drain_seconds: Time after that in which running requests may go on.
        verbose: True prints the phases of the start, and every request.
    """

    settings: "ServerSettings"
    streams: "StreamSettings"
    notice_seconds: float
    drain_seconds: float
    verbose: bool


@with_served_source
def serve(
    source: Source = DEMO,
    host: access.Host = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="0 takes a free one.")
    ] = 8000,
    ws_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port for WebSockets alone, with a page; 0 takes a free one."
        ),
    ] = None,
    name: access.ModelNames = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="ASYNCGEN_API_KEY",
            show_envvar=True,
            help="Key that opens /v1; repeatable. The variable holds them apart by spaces.",
        ),
    ] = None,
    allow_anonymous: access.AllowAnonymous = False,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Origin whose pages may call, or *; repeatable.")
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="The chat page at /, which needs gradio; if not given: with gradio and without "
            "keys, as keys do not guard it.",
        ),
    ] = None,
    chat_max_body: access.ChatMaxBody = None,
    chat_max_memory: access.ChatMaxMemory = None,
    allowed_host: access.AllowedHost = None,
    trusted_proxy: access.TrustedProxy = None,
    allow_priority: access.AllowPriority = False,
    priority_key: access.PriorityKey = None,
    open_metrics: access.OpenMetrics = False,
    open_docs: Annotated[
        bool, typer.Option("--open-docs", help="Serve /docs and /openapi.json without a key.")
    ] = False,
    max_requests: Annotated[
        int,
        typer.Option(
            min=1, help="Most requests at a time, one client 7/8 of them; others get 429."
        ),
    ] = 1024,
    max_running: access.MaxRunning = None,
    max_queue: Annotated[
        int | None, typer.Option(min=1, help="Most streams that queue; one more gets 429.")
    ] = None,
    prepare_seconds: access.PrepareSeconds = None,
    max_body: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Largest request body, MiB. If not given: what the model can use, at most 8.",
        ),
    ] = None,
    max_connections: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most connections on each port; others hear of health, or 503. If not given: what "
            "the limit of open files leaves, at most 4096.",
        ),
    ] = None,
    head_seconds: Annotated[
        float, typer.Option(min=0.1, help="Seconds within which the head of a request must come.")
    ] = 10.0,
    ping_seconds: Annotated[
        float,
        typer.Option(min=0.1, help="Seconds of silence after which a stream sends a comment."),
    ] = 5.0,
    notice: Annotated[
        float,
        typer.Option(
            min=0,
            help="Seconds after SIGTERM in which `/ready` says 503 and requests are still taken, "
            "for a router in front to notice.",
        ),
    ] = 0.0,
    drain: Annotated[
        float, typer.Option(min=0, help="Seconds that requests may go on after that.")
    ] = 30.0,
    resume_secret_file: access.ResumeSecretFile = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print the phases of the start; log requests.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Serve a model over HTTP, in the way of OpenAI's API.

    The page /docs describes each path with its fields, and how to call it.

    Example: asyncgen serve --model demo --port 8000
    """
    with one_line_errors(debug):
        require_installed(NEEDED, extra="serve")
        prepare_process(source.threads)
        source = replace(
            source,
            max_running=max_running,
            max_queue_size=max_queue,
            prepare_seconds=prepare_seconds,
        )
        startup = Startup()

        import os

        from asyncgen_apps.openai_http import ServerSettings
        from asyncgen_apps.openai_http.server import bind as listen
        from asyncgen_apps.openai_http.websocket_streams import stream_settings
        from asyncgen_apps.serving.origins import hosts_for

        access.check_reach(host, bool(api_key), allow_anonymous, "--api-key or ASYNCGEN_API_KEY")
        with_chat = _with_chat(chat, bool(api_key))
        try:
            settings = ServerSettings(
                model_names=tuple(name or [source.model]),
                api_keys=tuple(api_key or ()),
                cors_origins=tuple(cors_origin or ()),
                allowed_hosts=hosts_for(
                    host, allowed_host or (), is_guarded=bool(api_key) and not with_chat
                ),
                trusted_proxies=tuple(trusted_proxy or ()),
                allow_priority=allow_priority,
                priority_keys=tuple(priority_key or ()),
                open_metrics=open_metrics,
                open_docs=open_docs,
                max_body_bytes=access.mebibytes(max_body),
                max_requests=max_requests,
                max_connections=_connections(max_connections, 1 if ws_port is None else 2),
                head_seconds=head_seconds,
                ping_seconds=ping_seconds,
                with_chat=with_chat,
                chat_max_body_bytes=access.mebibytes(chat_max_body),
                chat_max_memory_bytes=access.mebibytes(chat_max_memory),
            )
            secret = access.read_secret(resume_secret_file, os.environ)
            streams = stream_settings(settings, drain, secret)
            plan = _ServerOptions(settings, streams, notice, drain, verbose)
        except ValueError as error:
            raise UserError(str(error)) from None
        ports = [port] if ws_port is None else [port, ws_port]
        listeners = [bind(listen, host, one) for one in ports]
        run_loop(_serve, source, plan, listeners, startup)


async def _serve(
    source: Source, plan: _ServerOptions, listeners: "list[socket.socket]", startup: Startup
) -> None:
    """Load, warm up, print the address, and serve."""
    import logging

    from asyncgen_apps.openai_http import create_app
    from asyncgen_apps.openai_http.server import Server
    from asyncgen_apps.openai_http.server import serve as run
    from asyncgen_apps.openai_http.websocket_streams import with_streams

    if plan.verbose:
        logging.basicConfig(format="%(levelname)s:  %(name)s: %(message)s", level=logging.INFO)
    async with warm_engine(source, startup) as llm:
        app = create_app(llm, plan.settings)
        gate, (listener, *others) = app.state.gate, listeners
        async with with_streams(app, llm, gate, plan.streams, *others) as streams:
            if plan.settings.with_chat:
                from asyncgen_apps.openai_http.chat_mount import mount_chat

                name = plan.settings.model_names[0]
                app = mount_chat(
                    app,
                    llm,
                    gate,
                    name=name,
                    examples=examples_of(source),
                    origins=plan.settings.cors_origins,
                    trusted_proxies=plan.settings.trusted_proxies,
                    max_body_bytes=plan.settings.chat_max_body_bytes,
                    max_memory_bytes=plan.settings.chat_max_memory_bytes,
                )
                startup.lap("chat page")
            server = Server(
                app,
                gate,
                plan.settings,
                notice_seconds=plan.notice_seconds,
                drain_seconds=plan.drain_seconds,
                drain_streams=streams.drain,
                sockets=streams.sockets,
                verbose=plan.verbose,
            )
            settle()
            _announce(plan, listeners, startup)
            await run(server, listener)


def _announce(plan: _ServerOptions, listeners: "list[socket.socket]", startup: Startup) -> None:
    """Print the address of the server."""
    where, *others = [_address(listener) for listener in listeners]
    names = ", ".join(plan.settings.model_names)
    if plan.verbose:
        say_startup(startup)
    chat = f", chat at http://{where}" if plan.settings.with_chat else ""
    streams = "".join(f", streams at ws://{other}/v1/stream" for other in others)
    say(f"serving {names} at http://{where}/v1, docs at http://{where}/docs{chat}{streams}")


def _address(listener: "socket.socket") -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _connections(wanted: int | None, ports: int) -> int:
    """Return the most connections of each port; refuse more than the limit of open files allows."""
    from asyncgen_apps.serving.sockets import room, too_many

    if wanted is None:
        return room(ports)
    if reason := too_many(wanted, ports):
        raise UserError(f"--max-connections {wanted}: {reason}")
    return wanted


def _with_chat(wanted: bool | None, guarded: bool) -> bool:
    """Decide whether to mount the chat page; refuse it if gradio is missing."""
    if wanted is False:
        return False
    from asyncgen_apps.openai_http.chat_mount import has_chat

    if wanted and not has_chat():
        raise UserError('--chat: gradio is not installed: pip install "asyncgen[gradio]"')
    return has_chat() and (wanted is True or not guarded)
