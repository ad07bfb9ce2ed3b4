"""Takes up a request that another server has begun: checks what is repeated of it.

All that a client may reach so it may reach by ``generate`` with ``generated_ids`` as well; what is
checked keeps its text whole, and one client's token from another. Knows no engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asyncgen_apps.websocket.errors import Fault
from asyncgen_apps.websocket.resume_tokens import UNKNOWN, Ticket

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

    from asyncgen_apps.serving.clients import Client
    from asyncgen_apps.websocket.messages import Resume
    from asyncgen_apps.websocket.resume_tokens import Signer

NOBODY_KNOWS = Fault("resume_unknown", "no request has this resume_token, or not any more")
CHANGED = Fault(
    "resume_changed", "what is repeated is not the request that this resume_token was given for"
)

_LEAST_TIME = 0.001


@dataclass(frozen=True, slots=True)
class Behind:
    """Position from which a request resumes.

    Attributes:
        ticket: What its token says.
        generated_ids: What each sample has generated, as far as it has arrived.
    """

    ticket: Ticket
    generated_ids: list[list[int]]

    @property
    def has_tokens(self) -> bool:
        """True if any token has arrived."""
        return any(self.generated_ids)


def read_behind(message: Resume, client: Client, signer: Signer, longest: float) -> Behind | Fault:
    """Check a repeated request, but for its digest.

    Args:
        message: Has a ``request``.
        client: Who wants it.
        signer: Reads its token.
        longest: Seconds from the first acceptance, within which it may be taken up.
    """
    assert message.request is not None
    ticket = signer.read(message.resume_token)
    # Whether it is another's, or nobody's, is nothing that who asks need know.
    if ticket is None or ticket.owner != signer.owner(client):
        return NOBODY_KNOWS
    age = signer.clock() - ticket.began
    if age > longest:
        told = f"the request began {age:.0f} s ago: it is taken up for {longest:g} s"
        return Fault("resume_expired", told)
    params = message.request.params
    samples = _samples(params)
    ids, positions = message.generated_ids, message.positions
    for name, given in (("generated_ids", ids), ("positions", positions)):
        if given is None or len(given) != samples:
            told = f"`{name}` has {len(given or ())} entries, and the request {samples} samples"
            return Fault("invalid_request", told, param=name)
    assert ids is not None and positions is not None
    first = _given(params.get("generated_ids"), samples)
    for index, (given, arrived, position) in enumerate(zip(first, ids, positions, strict=True)):
        if len(given) + len(arrived) != position:
            told = f"sample {index} is at {position}: with it {len(given) + len(arrived)} ids came"
            return Fault("invalid_request", told, param="positions")
    return Behind(ticket, ids)


def params_behind(
    params: Mapping[str, Any], behind: Behind, fingerprint: str | None, signer: Signer
) -> dict[str, Any]:
    """The parameters with which an engine goes on.

    Args:
        params: As they were at first.
        behind: Where it goes on.
        fingerprint: Of this engine.
        signer: Knows its mark.
    """
    ticket = behind.ticket
    more: dict[str, Any] = {**params, "seed": ticket.seed}
    if isinstance(params.get("max_time"), int | float):  # what else it may be, the engine refuses
        left = params["max_time"] - (signer.clock() - ticket.began)
        more["max_time"] = max(left, _LEAST_TIME)
    if not behind.has_tokens:
        return more
    samples = len(behind.generated_ids)
    first = _given(params.get("generated_ids"), samples)
    rows = [[*given, *ids] for given, ids in zip(first, behind.generated_ids, strict=True)]
    more["generated_ids"] = rows if samples > 1 else rows[0]
    more.pop("fingerprint", None)
    more.pop("prompt_logprobs", None)  # they came before any token
    if fingerprint is not None and ticket.engine == signer.engine(fingerprint):
        more["fingerprint"] = fingerprint
    return more


def engine_of(
    params: Mapping[str, Any], behind: Behind | None, fingerprint: str | None, signer: Signer
) -> bytes:
    """The mark of the engine that all tokens of a request are from, those of now included."""
    mine = signer.engine(fingerprint)
    if behind is not None and behind.has_tokens:
        return mine if behind.ticket.engine == mine else UNKNOWN
    if params.get("generated_ids") and params.get("fingerprint") != fingerprint:
        return UNKNOWN
    return mine


def _samples(params: Mapping[str, JsonValue]) -> int:
    asked = params.get("num_return_sequences") or params.get("n") or 1
    return asked if isinstance(asked, int) else 1


def _given(value: Any, samples: int) -> list[list[int]]:
    """The ids that a request came with, by sample; of another form the engine refuses them."""
    rows = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    found = [list(row) if isinstance(row, list) else [] for row in rows]
    return (found + [[]] * samples)[:samples]
