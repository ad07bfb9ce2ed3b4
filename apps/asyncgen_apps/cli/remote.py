"""Choose a server's model in place of a local one: ``asyncgen chat --url``. Imports no torch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from asyncgen_apps.cli.errors import UserError, require_installed
from asyncgen_apps.cli.source import Source

if TYPE_CHECKING:
    from collections.abc import Mapping

    import typer


KEY_VARIABLE = "ASYNCGEN_API_KEY"
"""Variable of the token, as for the servers. ``HF_TOKEN`` is sent to the hub only."""

_LOCAL = (
    "model",
    "device",
    "dtype",
    "quantize",
    "kv_cache_dtype",
    "threads",
    "revision",
    "follow_links",
    "special_tokens_in_content",
)
NEEDED = ("websockets", "pydantic")


def remote_source(
    url: str, context: typer.Context, environ: Mapping[str, str] | None = None
) -> Source:
    """Return the source that stands for a server.

    Args:
        url: Address of the server.
        context: The command line.
        environ: Environment that may have the token; the process's own by default.

    Raises:
        UserError: An option has no effect with a server, several tokens are in the environment, or
            something is not installed.
    """
    require_installed(NEEDED, extra="websocket")
    for name in _LOCAL:
        if is_typed(context, name):
            option = f"--{name.replace('_', '-')}"
            raise UserError(
                f"{option} together with --url: the server has loaded its model already"
            )
    if is_typed(context, "token"):
        return Source(url=url, token=context.params["token"])
    tokens = (os.environ if environ is None else environ).get(KEY_VARIABLE, "").split()
    if len(tokens) > 1:
        raise UserError(f"{KEY_VARIABLE} holds {len(tokens)} tokens: choose one with --token")
    return Source(url=url, token=tokens[0] if tokens else None)


def is_typed(context: typer.Context, name: str) -> bool:
    """Tell whether an option was typed on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
