"""The vocabulary of decoding strategies: what they are given and what they yield.

A strategy is a plain generator function. It takes a :class:`Plan` and yields one :class:`Step`
per decode step. It knows nothing of threads, event loops, text or streamers: whoever drives it
decides when the next step runs, and closing it is cancelling it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.cache import Cache
    from asyncgen.generation.config import GenerationConfig
    from asyncgen.generation.logits import LogitsProcessorList
    from asyncgen.generation.strategies.ends import Ends
    from asyncgen.generation.strategies.forward import Decoder
    from asyncgen.generation.strategies.record import Record
    from asyncgen.models.cross_attention import Encoded

__all__ = [
    "Draw",
    "DrawSeveral",
    "EncoderInput",
    "Outcome",
    "Plan",
    "Step",
    "Steps",
    "Strategy",
]

Draw: TypeAlias = "Callable[[Tensor, int], Tensor]"
"""Draws one token a row: (processed scores ``[B, V]``, position of the token) -> ids ``[B]``."""

DrawSeveral: TypeAlias = "Callable[[Tensor, int, int], Tensor]"
"""Draws without replacement: (scores ``[B, M]``, how many, position) -> indices ``[B, count]``."""


@dataclass(slots=True)
class EncoderInput:
    """What the encoder of a model with two stacks reads; one row a text, whatever the plan's rows.

    Attributes:
        input_ids: Int64 ``[B, T]``; ``None`` where only ``encoded`` is known.
        attention_mask: Bool ``[B, T]``, ``False`` at padding; ``None`` where nothing is padded.
        encoded: The encoder's output: given by the caller, or there since the first step.
    """

    input_ids: Tensor | None
    attention_mask: Tensor | None = None
    encoded: Encoded | None = None


@dataclass(slots=True)
class Plan:
    """Everything a strategy needs, checked and laid out before its first step.

    Attributes:
        core: The model module (see :class:`~asyncgen.generation.strategies.forward.Decoder`).
        input_ids: Prompt ids, left-padded, int64 ``[B, S]``.
        attention_mask: Bool ``[B, S]``, ``False`` at padding; ``None`` where nothing is padded.
        cache: Key/value cache of these rows; may already hold a beginning of the prompt.
        config: Complete configuration (no documented default left open).
        processors: Logits processors in their order.
        ends: Decides after each token which rows have ended, and why.
        pad_token_id: Fills rows that ended before the others.
        draw: Where sampling takes its randomness from.
        draw_several: The same for several draws at once, without replacement.
        prefill_chunk: Most prompt tokens of one forward; ``None`` is all at once.
        encoder: Input of the encoder; ids, mask and cache are then the decoder's. The rows of
            the plan may be a multiple of the encoder's, copies next to each other.
        record: Keeps hidden states and attentions; ``None`` where nobody asked for them.
        keep_logits: Whether steps that settle late must tell the raw logits behind each id.
    """

    core: Decoder
    input_ids: Tensor
    attention_mask: Tensor | None
    cache: Cache
    config: GenerationConfig
    processors: LogitsProcessorList
    ends: Ends
    pad_token_id: int
    draw: Draw
    draw_several: DrawSeveral
    prefill_chunk: int | None = None
    encoder: EncoderInput | None = None
    record: Record | None = None
    keep_logits: bool = False


@dataclass(slots=True)
class Step:
    """What one decode step settled.

    The last step of a strategy gives every row that was still live its reason. A step may settle
    nothing (a chunk of the prompt, beams that still disagree) or several ids of a row.

    Attributes:
        token_ids: Newly settled ids of each row; empty for rows that had ended.
        reasons: Why a row ended with this step, ``None`` while it goes on; empty for all ``None``.
        tokens: The ids as a streamer's ``put`` takes them: int64 ``[B]``, padding in ended rows;
            ``None`` where the step did not settle one id of every live row.
        logits: Raw logits of the step, float32 ``[B, V]``, one entry a forward pass.
        scores: The same after all processors, float32 ``[B, V]``.
        settled_logits: Raw logits behind each id of ``token_ids``, float32 ``[V]``, where these
            are not the rows of ``logits`` and the plan asks for them.
    """

    token_ids: list[list[int]]
    reasons: list[str | None] = field(default_factory=list)
    tokens: Tensor | None = None
    logits: Tensor | None = None
    scores: Tensor | None = None
    settled_logits: list[list[Tensor]] | None = None


@dataclass(slots=True)
class Outcome:
    """What a strategy returns when it is drained.

    Attributes:
        sequences: Prompt and continuation of every row, int64 ``[B, T]``, padded behind.
        extra: Fields of the documented output object that only this strategy has, such as
            ``sequences_scores``.
    """

    sequences: Tensor
    extra: dict[str, Tensor] = field(default_factory=dict)


Steps: TypeAlias = Generator[Step, None, Outcome]
Strategy: TypeAlias = Callable[[Plan], Steps]
