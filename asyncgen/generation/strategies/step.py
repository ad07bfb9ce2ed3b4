"""The vocabulary of decoding strategies: what they are given and what they yield.

A strategy is a plain generator function. It takes a :class:`Plan` and yields one :class:`Step`
per decode step. It knows nothing of threads, event loops, text or streamers: its caller
decides when the next step runs, and closing it is cancelling it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.cache.caches import Cache
    from asyncgen.families.config import ModelConfig
    from asyncgen.generation.config import GenerationConfig
    from asyncgen.generation.logits.base import LogitsProcessorList
    from asyncgen.generation.stopping.stop_checks import StopChecks
    from asyncgen.generation.strategies.layer_outputs import LayerRecorder
    from asyncgen.models.attention.cross import Encoded
    from asyncgen.models.attention.dense import AttentionContext


class Decoder(Protocol):
    """Model module as a strategy sees it."""

    config: ModelConfig

    def decode(self, input_ids: Tensor, positions: Tensor, attention: AttentionContext) -> Tensor:
        """Logits ``[B, V]`` of the last position of ids ``[B, S]`` at positions ``[1 or B, S]``."""


class Draw(Protocol):
    """Source of a strategy's random draws.

    A stateless source gives the same answer to the same question. ``stream`` tells apart what is
    drawn for one position more than once, such as a draft of a token and the token itself: draws
    of different streams are independent. Stream 0 is the token that is settled.
    """

    def __call__(self, scores: Tensor, position: int, stream: int = 0) -> Tensor:
        """Draw one token a row: processed scores ``[B, V]``, its position -> ids ``[B]``."""

    def successive(self, scores: Tensor, position: int) -> Tensor:
        """Draw for S successive positions of one row: scores ``[S, V]``, the first -> ids ``[S]``.

        The token of each position is that of a call for this position alone, as far as the source
        has no state.
        """

    def uniform(self, position: int, count: int, stream: int = 0) -> Tensor:
        """Draw float32 ``[count]`` from [0, 1), one for each position from ``position`` on."""

    def several(self, scores: Tensor, count: int, position: int) -> Tensor:
        """Draw without replacement: scores ``[B, M]`` -> indices ``[B, count]`` as drawn."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens that may come next.

    Attributes:
        token_ids: The guesses in order, int64 ``[n]``; n may be 0.
        scores: Log-probabilities, up to a constant, of the distribution that each guess was drawn
            from, float32 ``[n, V]``; ``None`` where it was not drawn at random.
    """

    token_ids: Tensor
    scores: Tensor | None = None


Drafting: TypeAlias = Generator["Step", None, Proposal]
"""A proposal in the making: yields a step without ids after each bounded piece of work but the
last, returns the proposal."""


class Drafter(Protocol):
    """Guesses the next tokens of one sequence, round after round."""

    def propose(self, ids: Tensor, room: int) -> Drafting:
        """Guess what follows.

        Args:
            ids: Everything settled so far, int64 ``[1, T]``; it grows from round to round. The
                memory is the caller's: a view, to be read before the generator ends.
            room: Most tokens that are of use, at least 1.
        """

    def update(self, accepted: int) -> None:
        """Learn how many of the first guesses of the last proposal were right."""


@dataclass(slots=True)
class EncoderInput:
    """Inputs of an encoder; one row for each text, whatever the plan's rows.

    Attributes:
        input_ids: Int64 ``[B, T]``; ``None`` where there are embeddings, or only ``encoded``.
        attention_mask: Bool ``[B, T]``, ``False`` at padding; ``None`` where nothing is padded.
        encoded: The encoder's output: given by the caller, or there since the first step.
        embeddings: ``[B, T, E]`` in the place of ids.
    """

    input_ids: Tensor | None
    attention_mask: Tensor | None = None
    encoded: Encoded | None = None
    embeddings: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Texts, and positions of each: ``(B, T)``."""
        known = self.embeddings if self.input_ids is None else self.input_ids
        if known is None:
            assert self.encoded is not None and self.encoded.states is not None
            known = self.encoded.states
        return known.shape[0], known.shape[1]


class ModelCall(Protocol):
    """Calls the model as its user wrote it, where ``core`` alone would not compute the same.

    Attributes:
        cache: The cache that the last call returned; ``None`` without a cache.
    """

    cache: Cache | None

    def __call__(self, plan: Plan) -> object:
        """Return the `Forward` that runs the rows of a plan."""


@dataclass(frozen=True, slots=True)
class PromptInputs:
    """Inputs of the prompts beside their ids from position 0 on.

    Attributes:
        offset: Position of the first id, negative where there are more ids than positions.
        embeddings: ``[B, S, E]`` from position 0 on, in the place of the ids.
        position_ids: What the model is told of the last positions of the prompts, int64 ``[B, n]``;
            it counts on from there.
        token_type_ids: Types of the last positions, int64 ``[B, n]``; new tokens are of the last.
    """

    offset: int = 0
    embeddings: Tensor | None = None
    position_ids: Tensor | None = None
    token_type_ids: Tensor | None = None

    def repeated(self, copies: int) -> PromptInputs:
        """The same for several rows of each prompt, next to each other."""
        tensors = (self.embeddings, self.position_ids, self.token_type_ids)
        return PromptInputs(self.offset, *(repeat_rows(each, copies) for each in tensors))


def repeat_rows(table: Tensor | None, copies: int) -> Tensor | None:
    """Each row of ``[B, ...]`` several times, next to each other."""
    return None if table is None else table.repeat_interleave(copies, dim=0)


@dataclass(slots=True)
class Plan:
    """Everything a strategy needs, checked and laid out before its first step.

    Attributes:
        core: The model module.
        input_ids: Prompt ids, left-padded, int64 ``[B, S]``.
        attention_mask: Bool ``[B, S]``, ``False`` at padding; ``None`` where nothing is padded.
            With ``inputs`` it is of all positions of the prompt, those in the cache included.
        cache: Key/value cache of these rows; may already hold a beginning of the prompt.
        config: Complete configuration (no documented default left open).
        processors: Logits processors in their order.
        stop_checks: Decides after each token which rows have ended, and why.
        pad_token_id: Fills rows that ended before the others.
        draw: Where sampling takes its randomness from.
        prefill_chunk: Most prompt tokens of one forward; ``None`` is all at once.
        encoder: Input of the encoder; ids, mask and cache are then the decoder's. The rows of
            the plan may be a multiple of the encoder's, copies next to each other.
        record: Keeps hidden states and attentions; ``None`` where they were not asked for.
        drafter: Guesses tokens ahead, for assisted generation only.
        copies: Sequences that each row of the plan becomes; more than one with beams only.
        keep_logits: Whether steps that settle late must tell the raw logits behind each id.
        live: Which rows go on; those that have ended already are filled up. ``None``: all do.
        inputs: What else the caller gave of the prompts.
        call: Calls the model as its user wrote it; ``None`` where ``core`` alone computes.
    """

    core: Decoder
    input_ids: Tensor
    attention_mask: Tensor | None
    cache: Cache
    config: GenerationConfig
    processors: LogitsProcessorList
    stop_checks: StopChecks
    pad_token_id: int
    draw: Draw
    prefill_chunk: int | None = None
    encoder: EncoderInput | None = None
    record: LayerRecorder | None = None
    drafter: Drafter | None = None
    copies: int = 1
    keep_logits: bool = False
    live: list[bool] | None = None
    inputs: PromptInputs | None = None
    call: ModelCall | None = None

    @property
    def offset(self) -> int:
        """Position of the first id of the prompts."""
        return 0 if self.inputs is None else self.inputs.offset

    @property
    def embeddings(self) -> Tensor | None:
        """Embeddings in place of the prompts' ids, ``[B, S, E]``."""
        return None if self.inputs is None else self.inputs.embeddings

    @property
    def num_positions(self) -> int:
        """Positions of the prompts, padding and those in the cache included."""
        return self.offset + self.input_ids.shape[1]

    def unread(self, start: int) -> Tensor:
        """The prompts from position ``start`` on: ids ``[B, n]`` or embeddings ``[B, n, E]``."""
        embeddings = self.embeddings
        if embeddings is not None:
            return embeddings[:, start:]
        return self.input_ids[:, start - self.offset :]

    def repeated(self, copies: int) -> Plan:
        """The plan of several rows for each prompt, next to each other; the cache is the same."""
        ids = self.input_ids.repeat_interleave(copies, dim=0)
        mask = repeat_rows(self.attention_mask, copies)
        inputs = None if self.inputs is None else self.inputs.repeated(copies)
        return replace(self, input_ids=ids, attention_mask=mask, inputs=inputs)


@dataclass(slots=True)
class Step:
    """Tokens and scores that one decode step settled.

    The last step of a strategy gives every row that was still live its reason. A step may settle
    nothing (a chunk of the prompt, beams that still disagree) or several ids of a row.

    Attributes:
        token_ids: Newly settled ids of each row; empty for rows that had ended.
        reasons: Why a row ended with this step, ``None`` while it goes on; empty for all ``None``.
        tokens: The ids as a streamer's ``put`` takes them: int64 ``[B]``, padding in ended rows;
            ``None`` where the step did not settle one id of every live row.
        logits: Raw logits of the step, float32 ``[B, V]``; of several positions ``[n * B, V]``,
            all rows of the first position first.
        scores: The same after all processors.
        positions: Number n of positions that logits and scores are of.
        prompt: The prompts as they are from here on, int64 ``[B, S]``, where the step changed them.
        settled_logits: Raw logits behind each id of ``token_ids``, float32 ``[V]``, where these
            are not the rows of ``logits`` and the plan asks for them.
    """

    token_ids: list[list[int]]
    reasons: list[str | None] = field(default_factory=list)
    tokens: Tensor | None = None
    logits: Tensor | None = None
    scores: Tensor | None = None
    positions: int = 1
    prompt: Tensor | None = None
    settled_logits: list[list[Tensor]] | None = None


@dataclass(slots=True)
class Outcome:
    """Result of a strategy at its end.

    Attributes:
        sequences: Prompt and continuation of every row, int64 ``[B, T]``, padded behind.
        extra: Fields of the documented output object that only this strategy has, such as
            ``sequences_scores``.
        result: What a method that a user wrote returned, in place of the documented output.
    """

    sequences: Tensor
    extra: dict[str, Tensor] = field(default_factory=dict)
    result: Any = None


Steps: TypeAlias = Generator[Step, None, Outcome]
Strategy: TypeAlias = Callable[[Plan], Steps]
