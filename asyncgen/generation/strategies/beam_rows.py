"""Beams as rows of the model: the prompt is read once, then every beam is a row of its own.

Knows the cache and how rows change places; knows nothing of scores or hypotheses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.cache.encoder_decoder import EncoderDecoderCache
from asyncgen.cache.quantized.quantized_cache import QuantizedCache
from asyncgen.cache.static import StaticCache
from asyncgen.errors import InvalidRequestError, InWords
from asyncgen.generation.strategies.forward import open_forward, read_prompt

if TYPE_CHECKING:
    from collections.abc import Generator

    from torch import Tensor

    from asyncgen.cache.caches import Cache
    from asyncgen.generation.strategies.forward import Forward
    from asyncgen.generation.strategies.step import Plan, Step


class BeamRows:
    """Runs the model over ``B * num_beams`` rows, beams of a prompt next to each other."""

    def __init__(self, plan: Plan, num_beams: int) -> None:
        """Look at what the cache holds already.

        Args:
            plan: One row a prompt.
            num_beams: Beams of each.

        Raises:
            InvalidRequestError: The cache has a number of rows that fits neither.
        """
        self._plan = plan
        self._beams = num_beams
        batch = plan.input_ids.shape[0]
        present = _rows_of(plan.cache)
        if present not in (None, batch, batch * num_beams):
            raise InvalidRequestError(
                "past_key_values",
                InWords(f"a cache of {present} rows"),
                f"needs one row a prompt ({batch}) or a beam ({batch * num_beams})",
            )
        # A cache that already has a row for each beam cannot be repeated after the prompt; what
        # goes on inside the model, and what its user is asked, has a row for each beam; and groups
        # of quantised numbers may reach over rows.
        is_watched = plan.record is not None or plan.call is not None
        shares = not is_watched and not isinstance(plan.cache, QuantizedCache)
        self._repeats_late = shares and present != batch * num_beams
        # The beams of an earlier search may hold different beginnings of the same length.
        self._begins_alike = present != batch * num_beams or not plan.cache.text_length
        self._forward: Forward | None = None
        self._in_place = list(range(batch * num_beams))

    def prefill(self) -> Generator[Step, None, Tensor]:
        """Read the prompt in chunks.

        Yields:
            A :class:`Step` without ids for each chunk but the last.

        Returns:
            Logits after the prompt, ``[B * num_beams, V]``.
        """
        plan, late = self._plan, self._repeats_late
        begun = plan if late else plan.repeated(self._beams)
        forward = open_forward(begun)
        prompt = begun.unread(forward.length)
        returned = plan.input_ids.shape[0] * (plan.config.num_return_sequences or 1)
        logits = yield from read_prompt(forward, prompt, plan.prefill_chunk, returned)
        if late:
            plan.cache.batch_repeat_interleave(self._beams)
            forward = open_forward(plan.repeated(self._beams))
            logits = logits.repeat_interleave(self._beams, dim=0)
        self._forward = forward
        return logits

    def arrange(self, parents: Tensor, agreed: int = 0) -> None:
        """Let every row become another one; of a cache that outlives the search as well.

        Args:
            parents: Row that each row continues, int64 ``[B * num_beams]``.
            agreed: The ids before this one are in all rows like in those that they continue.
        """
        assert self._forward is not None
        if parents.tolist() != self._in_place:
            alike = max(agreed + self._plan.offset, 0) if self._begins_alike else 0
            self._forward.exchange_rows(parents, alike)

    def advance(self, tokens: Tensor) -> Tensor:
        """Let every row go on by one token, int64 ``[B * num_beams]``.

        Returns:
            Logits ``[B * num_beams, V]``.
        """
        assert self._forward is not None
        return self._forward(tokens[:, None])


def _rows_of(cache: Cache) -> int | None:
    """Rows that a cache was made for or holds; ``None`` where any number will do."""
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    if isinstance(cache, StaticCache) and cache.max_batch_size is not None:
        return cache.max_batch_size
    keys = cache.layers[0].keys if cache.layers else None
    return None if keys is None else keys.shape[0]
