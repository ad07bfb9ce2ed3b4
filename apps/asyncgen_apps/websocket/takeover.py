"""Check a request that another server began, before this server resumes it.

The client repeats the request with its resume token and the tokens so far. The checks keep the
text without gaps, and keep a client from using the token of another. They give no new rights: a
client could send the same with ``generate`` and ``generated_ids``. Knows no engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asyncgen_apps.serving.resumption import count_samples, given_ids, resumed_params
from asyncgen_apps.websocket.errors import Fault
from asyncgen_apps.websocket.resume_tokens import NO_ENGINE, TokenClaims

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen_apps.serving.clients import Client
    from asyncgen_apps.websocket.messages import Resume
    from asyncgen_apps.websocket.resume_tokens import Signer

UNKNOWN_REQUEST = Fault("resume_unknown", "no request has this resume_token, or not any more")
CHANGED_REQUEST = Fault(
    "resume_changed", "what is repeated is not the request that this resume_token was given for"
)


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Position from which a request resumes.

    Attributes:
        claims: Content of its resume token.
        generated_ids: Tokens of each sample that the client received.
    """

    claims: TokenClaims
    generated_ids: list[list[int]]

    @property
    def has_tokens(self) -> bool:
        """True if the client received any token."""
        return any(self.generated_ids)


def check_resume(
    message: Resume, client: Client, signer: Signer, longest: float
) -> ResumePoint | Fault:
    """Check everything of a repeated request but its digest.

    Args:
        message: Message with a ``request``.
        client: Client that sent it.
        signer: Reader of its token.
        longest: Seconds after the first acceptance during which it may be resumed.
    """
    assert message.request is not None
    claims = signer.read(message.resume_token)
    # The same error for both, so that a client learns nothing of the tokens of others.
    if claims is None or claims.owner != signer.owner(client):
        return UNKNOWN_REQUEST
    age = signer.clock() - claims.began
    if age > longest:
        text = f"the request began {age:.0f} s ago: it is taken up for {longest:g} s"
        return Fault("resume_expired", text)
    params = message.request.params
    samples = count_samples(params)
    ids, positions = message.generated_ids, message.positions
    for name, given in (("generated_ids", ids), ("positions", positions)):
        if given is None or len(given) != samples:
            text = f"`{name}` has {len(given or ())} entries, and the request {samples} samples"
            return Fault("invalid_request", text, param=name)
    assert ids is not None and positions is not None
    first = given_ids(params, samples)
    for index, (given, arrived, position) in enumerate(zip(first, ids, positions, strict=True)):
        if len(given) + len(arrived) != position:
            text = f"sample {index} is at {position}: with it {len(given) + len(arrived)} ids came"
            return Fault("invalid_request", text, param="positions")
    return ResumePoint(claims, ids)


def params_at(
    resume_point: ResumePoint, params: Mapping[str, Any], fingerprint: str | None, signer: Signer
) -> dict[str, Any]:
    """Return the parameters by which this engine resumes a request.

    The fingerprint is passed on only if the token shows that the same engine began the request.

    Args:
        resume_point: Position from which it resumes.
        params: Parameters of the request when it began.
        fingerprint: Fingerprint of this engine.
        signer: Maker of the marks in resume tokens.
    """
    claims = resume_point.claims
    resumed = resumed_params(
        params, resume_point.generated_ids, seed=claims.seed, elapsed=signer.clock() - claims.began
    )
    if resume_point.has_tokens:
        resumed.pop("fingerprint", None)
        if fingerprint is not None and claims.engine == signer.engine(fingerprint):
            resumed["fingerprint"] = fingerprint
    return resumed


def engine_mark(
    resume_point: ResumePoint | None,
    params: Mapping[str, Any],
    fingerprint: str | None,
    signer: Signer,
) -> bytes:
    """Return the mark of the one engine that generates all tokens; `NO_ENGINE` if several do."""
    mark = signer.engine(fingerprint)
    if resume_point is not None and resume_point.has_tokens:
        return mark if resume_point.claims.engine == mark else NO_ENGINE
    if params.get("generated_ids") and params.get("fingerprint") != fingerprint:
        return NO_ENGINE
    return mark
