"""One sample of a request: one row of the shared batch, from its admission to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.engine.requests.request import sample_name
from asyncgen.engine.sampling.row import SamplerRow
from asyncgen.engine.scheduling.state import RequestState

if TYPE_CHECKING:
    from asyncgen.engine.requests.request import Request

__all__ = ["Sample"]


class Sample(RequestState):
    """A row of the batch, as the scheduler, the sampler and the writer of events see it.

    Attributes:
        request: Whose it is.
        index: Which sample of the request, from 0.
        sampling: What the sampler keeps of it; ``None`` before its first step.
        decodes: Whether it has its first token, or will have it before the next step.
    """

    __slots__ = ("decodes", "index", "request", "sampling")

    def __init__(self, request: Request, index: int, *, salt: bytes = b"") -> None:
        """Begin at the end of the prompt.

        Args:
            request: Whose it is.
            index: Which sample.
            salt: See `RequestState`.
        """
        config, most = request.params.config, request.ends.max_length
        super().__init__(
            request_id=sample_name(request.id, index),
            initial_tokens=request.prompt_ids,
            max_new_tokens=None if most is None else max(most - len(request.prompt_ids), 1),
            priority=request.params.priority,
            prefill_chunk_size=config.prefill_chunk_size,
            salt=salt,
        )
        self.request = request
        self.index = index
        self.sampling: SamplerRow | None = None
        self.decodes = False

    def begin_sampling(self) -> None:
        """Make what the sampler keeps; a request in the queue costs no more than its ids."""
        self.sampling = SamplerRow(self.request, self.index)
        self.sampling.token_ids = self.tokens
