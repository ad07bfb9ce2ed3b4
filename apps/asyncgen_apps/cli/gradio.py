"""``asyncgen gradio``: a chat in the browser."""

import os
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from asyncgen_apps.cli.access import (
    AllowedHost,
    ChatMaxBody,
    ChatMaxMemory,
    TrustedProxy,
    mebibytes,
)
from asyncgen_apps.cli.common_options import Debug, with_chat_source
from asyncgen_apps.cli.errors import UserError, one_line_errors
from asyncgen_apps.cli.process import prepare_process
from asyncgen_apps.cli.serving import bind
from asyncgen_apps.cli.source import DEMO, Source, examples_of

if TYPE_CHECKING:
    import socket

    from asyncgen_apps.gradio_chat.model import ChatModel


@with_chat_source
def gradio(
    source: Source = DEMO,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets the network in.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="The first free one from 7860 if not given."),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser here.")] = False,
    login: Annotated[
        str | None,
        typer.Option(envvar="ASYNCGEN_LOGIN", help="user:password that the page asks for."),
    ] = None,
    allowed_host: AllowedHost = None,
    trusted_proxy: TrustedProxy = None,
    chat_max_body: ChatMaxBody = None,
    chat_max_memory: ChatMaxMemory = None,
    share: Annotated[
        bool, typer.Option("--share", help="Open a public link, through Gradio's servers.")
    ] = False,
    assistant: Annotated[
        str | None, typer.Option(help="A draft model for assisted generation: a folder or hub id.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Chat with a model in the browser.

    Example: asyncgen gradio --model demo
    """
    with one_line_errors(debug):
        from asyncgen_apps.serving.origins import hosts_for

        hosts, proxies = allowed_host or (), tuple(trusted_proxy or ())
        _check_names(hosts, proxies)
        page = {
            "server_name": host,
            "server_port": port,
            "share": share,
            "auth": _login(login),
            "inbrowser": browser,
        }
        names = hosts_for(host, hosts, is_guarded=share or login is not None)
        prepare_process(source.threads)
        _require_gradio()
        if port is not None:
            bind(_listen, host, port).close()  # Gradio would say it after loading, and vaguely

        import anyio

        given = {
            "max_body_bytes": mebibytes(chat_max_body),
            "max_memory_bytes": mebibytes(chat_max_memory),
        }
        guards = {name: value for name, value in given.items() if value is not None}
        anyio.run(_serve, source, page, {**guards, "allowed_hosts": names}, proxies, assistant)


def _listen(host: str, port: int) -> "socket.socket":
    from asyncgen_apps.serving.sockets import listen

    return listen(host, port, 1)


def _check_names(hosts: Sequence[str], proxies: Sequence[str]) -> None:
    """Refuse hosts and proxies that are no names or addresses.

    Raises:
        UserError: Names the wrong one.
    """
    from asyncgen_apps.serving.clients import Proxies
    from asyncgen_apps.serving.origins import check_hosts

    try:
        check_hosts(hosts)
        Proxies(proxies)
    except ValueError as error:
        raise UserError(str(error)) from None


def _login(text: str | None) -> tuple[str, str] | None:
    """Read ``user:password``."""
    if text is None:
        return None
    user, colon, password = text.partition(":")
    if not (user and colon and password):
        raise UserError("--login takes user:password, both not empty")
    return user, password


def _require_gradio() -> None:
    """Check that Gradio is installed, and turn its reports to its makers off."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        import gradio  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "gradio":
            raise
        raise UserError('gradio is not installed: pip install "asyncgen[gradio]"') from None


async def _serve(
    source: Source,
    options: dict[str, Any],
    guards: dict[str, Any],
    trusted_proxies: tuple[str, ...],
    assistant: str | None,
) -> None:
    """Serve the page until Ctrl-C or SIGTERM."""
    import anyio

    from asyncgen_apps.cli.loading import opened
    from asyncgen_apps.gradio_chat import build_chat, launch_options

    async with opened(source) as llm:
        name = os.path.basename(source.model.rstrip("/")) or source.model
        page = build_chat(
            cast("ChatModel", llm),
            name=name,
            examples=examples_of(source),
            assistant_model=assistant,
            trusted_proxies=trusted_proxies,
        )
        # The receiver comes first: whoever reads the line below may send a signal at once.
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            try:
                _, local, public = page.launch(
                    **options,
                    prevent_thread_lock=True,
                    quiet=True,
                    state_session_capacity=page.state_session_capacity,
                    **launch_options(**guards),
                )
                typer.echo(f"{name} is at {public or local} · Ctrl-C ends")
                async for _ in signals:
                    break
            finally:
                page.close(verbose=False)
