"""Takes up a request that another server has begun: checks what is repeated of it.

All that a client may reach so it may reach by ``generate`` with ``generated_ids`` as well; what is
checked keeps its text whole, and one client's token from another. Knows no engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asyncgen_apps.serving.resumption import count_samples, given_ids, resumed_params
from asyncgen_apps.websocket.errors import Fault
from asyncgen_apps.websocket.resume_tokens import UNKNOWN, Ticket

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen_apps.serving.clients import Client
    from asyncgen_apps.websocket.messages import Resume
    from asyncgen_apps.websocket.resume_tokens import Signer

NOBODY_KNOWS = Fault("resume_unknown", "no request has this resume_token, or not any more")
CHANGED = Fault(
    "resume_changed", "what is repeated is not the request that this resume_token was given for"
)


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
    samples = count_samples(params)
    ids, positions = message.generated_ids, message.positions
    for name, given in (("generated_ids", ids), ("positions", positions)):
        if given is None or len(given) != samples:
            told = f"`{name}` has {len(given or ())} entries, and the request {samples} samples"
            return Fault("invalid_request", told, param=name)
    assert ids is not None and positions is not None
    first = given_ids(params, samples)
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
    resumed = resumed_params(
        params, behind.generated_ids, seed=ticket.seed, elapsed=signer.clock() - ticket.began
    )
    if behind.has_tokens:
        resumed.pop("fingerprint", None)
        if fingerprint is not None and ticket.engine == signer.engine(fingerprint):
            resumed["fingerprint"] = fingerprint
    return resumed


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
