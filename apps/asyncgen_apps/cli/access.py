"""Options that the servers share: address, access, limits; and the checks of these."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asyncgen_apps.cli.errors import UserError
from asyncgen_apps.websocket.resume_tokens import SECRET_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

Host = Annotated[str, typer.Option(help="Address; 0.0.0.0 is all of this machine.")]
ModelNames = Annotated[
    list[str] | None, typer.Option(help="Name of the model in requests; repeatable.")
]
MaxRunning = Annotated[
    int | None, typer.Option(min=1, help="Most streams that share a step; others queue.")
]
AllowAnonymous = Annotated[
    bool,
    typer.Option(
        "--allow-anonymous",
        "--no-auth",
        help="Ask for no key, also if other machines reach the server.",
    ),
]
AllowedHost = Annotated[
    list[str] | None,
    typer.Option(
        help="Host that browsers may ask for, or *; repeatable. If not given: on the loopback "
        "without keys this machine's own names, elsewhere any."
    ),
]
TrustedProxy = Annotated[
    list[str] | None,
    typer.Option(
        help="Address or network of a proxy whose X-Forwarded-For is believed, or unix; repeatable."
    ),
]
AllowPriority = Annotated[
    bool,
    typer.Option("--allow-priority", help="Accept `priority`, the order of a client's requests."),
]
PriorityKey = Annotated[
    list[str] | None,
    typer.Option(help="Key whose requests may set `priority`, if not all may; repeatable."),
]
ChatMaxBody = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Largest event of the chat page, MiB, with all chats of its browser. If not given: 4.",
    ),
]
ChatMaxMemory = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Most memory of the chat page's sessions, MiB; idle ones give way. If not given: 256.",
    ),
]
OpenMetrics = Annotated[bool, typer.Option("--open-metrics", help="Serve /metrics without a key.")]
PrepareSeconds = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        help="Seconds within which a request must be tokenized, else it fails. If not given: 10.",
    ),
]
ResumeSecretFile = Annotated[
    Path | None,
    typer.Option(
        help="File with a secret of servers that resume each other's streams. Or "
        f"{SECRET_VARIABLE}."
    ),
]


def mebibytes(count: int | None) -> int | None:
    """Return the bytes of an option in MiB; ``None`` stays."""
    return None if count is None else count * 2**20


def read_secret(file: Path | None, environ: "Mapping[str, str]") -> str:
    """Read the secret of the resume tokens, which must show in no list of processes.

    Args:
        file: File with the secret; space around it is dropped.
        environ: Environment that may have the variable.

    Returns:
        The secret; empty if there is none.

    Raises:
        UserError: The file cannot be read, or is empty.
    """
    if file is None:
        return environ.get(SECRET_VARIABLE, "").strip()
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--resume-secret-file {file}: {error}") from None
    if not secret:
        raise UserError(f"--resume-secret-file {file}: it is empty")
    return secret


def check_reach(host: str, has_keys: bool, allow_anonymous: bool, remedy: str) -> None:
    """Refuse to serve a network without a key, before a model is loaded.

    Args:
        host: Address to listen on.
        has_keys: True if clients need a key.
        allow_anonymous: True if the operator allows clients without a key.
        remedy: Option or variable that takes keys.

    Raises:
        UserError: Other machines reach it without a key; or two options contradict.
    """
    from asyncgen_apps.serving.origins import is_loopback

    if has_keys and allow_anonymous:
        raise UserError("--allow-anonymous together with keys: leave one of them out")
    if not has_keys and not allow_anonymous and not is_loopback(host):
        raise UserError(
            f"{host} is reached by other machines: give {remedy}, or say --allow-anonymous"
        )
