"""Run one forward pass over all rows of a step: scheduled tokens in, logits of finished rows out.

Hidden states go to the readers of rows that have one: for embeddings, or for log-probabilities of
a prompt. The runner knows tokens and pages; not their requests, nor what becomes of the logits.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

from asyncgen.models.kernels.parameter import counting_writes
from asyncgen.models.kernels.threads import claim_thread
from asyncgen.runtime.cpu_threads import CpuBackoff, lower_threads
from asyncgen.runtime.transfer import to_device

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from asyncgen.engine.batch.async_step import UnreadTokens
    from asyncgen.engine.requests.pooling import HiddenReader
    from asyncgen.engine.scheduling.state import RequestState, ScheduledRow
    from asyncgen.families.config import ModelConfig
    from asyncgen.models.attention.dense import AttentionContext
    from asyncgen.models.attention.paged.paged_attention import PagedAttention
    from asyncgen.models.cuda_graphs import DecodeGraphs


class PackedDecoder(Protocol):
    """Model module, as the shared batch needs it."""

    config: ModelConfig

    def follow_writes(self) -> None:
        """Compute with the weights as they are now."""

    def decode_packed(
        self, input_ids: Tensor, positions: Tensor, last: Tensor, attention: AttentionContext
    ) -> Tensor:
        """Return logits ``[R, V]`` at the positions ``last`` ``[R]`` of packed ids ``[N]``."""

    def hidden_packed(
        self, input_ids: Tensor, positions: Tensor, wanted: Tensor, attention: AttentionContext
    ) -> Tensor:
        """Return normalised hidden states ``[R, E]`` at the positions ``wanted`` ``[R]``."""

    def project(self, hidden: Tensor) -> Tensor:
        """Return logits ``[R, V]`` of normalised hidden states ``[R, E]``."""


class BatchRunner:
    """Model with its attention over pages."""

    def __init__(
        self, core: PackedDecoder, attention: PagedAttention, graphs: DecodeGraphs | None = None
    ) -> None:
        """Join a model and its attention over pages.

        Args:
            core: The model.
            attention: Attention over pages of the model's configuration.
            graphs: Recordings of decode steps over the same pages; ``None`` to compute every step
                without them.
        """
        self._core = core
        self._device = attention.storage.device
        self._attention = attention
        self._graphs = graphs
        self._backoff: CpuBackoff | None = None

    def warm(self) -> None:
        """Claim this thread for the model's kernels."""
        is_claimed = claim_thread(self._core)
        if not is_claimed and self._device.type == "cpu" and torch.get_num_threads() > 1:
            self._backoff = CpuBackoff(torch.get_num_threads())

    def record_steps(self) -> None:
        """Record decode steps in advance, where they are recorded at all."""
        if self._graphs is not None:
            self._graphs.warm()

    def settle(self) -> None:
        """Wait until the device has computed what was begun."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def weights(self) -> tuple[nn.Parameter, ...]:
        """List the parameters of the model that count writes."""
        return counting_writes(self._core) if isinstance(self._core, nn.Module) else ()

    def forget_weights(self) -> None:
        """Compute with the weights as they are now, which may lie elsewhere."""
        self._core.follow_writes()
        if self._graphs is not None:
            self._graphs.forget()

    @torch.no_grad()
    def logits(
        self,
        rows: Sequence[ScheduledRow],
        unread: UnreadTokens | None = None,
        readers: Mapping[RequestState, HiddenReader] | None = None,
    ) -> Tensor:
        """Compute the tokens of all rows and store their keys and values.

        Args:
            rows: At least one row; each has its tokens to run, and its pages.
            unread: Tokens that are ``UNREAD`` in the rows.
            readers: Readers of hidden states, of the rows that have one.

        Returns:
            Raw logits ``[R, V]`` after the last token of each row that came to its end, in order,
            without rows whose readers ask for no token.

        Raises:
            Exception: The model raised it. Pages may have been written to; running the same rows
                again writes the same.
        """
        ids: list[int] = []
        positions: list[int] = []
        last: list[int] = []  # of sampled tokens and of those that readers want, ascending
        fed: list[tuple[HiddenReader, slice, int]] = []
        sampled: list[int] = []
        for row in rows:
            start, count, tokens = row.start, row.count, row.state.tokens
            if count == 1:
                ids.append(tokens[start])
                positions.append(start)
            else:
                ids += tokens[start : start + count]
                positions += range(start, start + count)
            reader = readers.get(row.state) if readers else None
            if reader is not None:
                taken = reader.wanted(start, start + count, is_last=row.is_last)
                first = len(ids) - count - start  # where the text would begin
                if taken:
                    fed.append((reader, slice(len(last), len(last) + len(taken)), taken.start))
                    last += [first + position for position in taken]
            if row.is_last and (reader is None or reader.generates):
                if not last or last[-1] != len(ids) - 1:  # else its reader wants it too
                    last.append(len(ids) - 1)
                sampled.append(len(last) - 1)
        insert = None if unread is None else unread.inserter(rows, ids)
        if insert is not None:
            ids = [max(token, 0) for token in ids]
        graphs = None if fed or len(sampled) < len(rows) else self._graphs
        if graphs is not None and all(row.count == 1 for row in rows):
            recorded = graphs.logits(rows, ids, insert)
            if recorded is not None:
                return recorded
        self._attention.lay_out(rows)
        # One tensor, and so one copy to the device.
        numbers = array("q", ids + positions + last + (sampled if fed else []))
        packed = torch.frombuffer(numbers, dtype=torch.int64)
        if self._device.type != "cpu":
            packed = to_device(packed, self._device)
        end, behind = 2 * len(ids), 2 * len(ids) + len(last)
        if insert is not None:
            insert(packed[: len(ids)])
        backoff = self._backoff
        if backoff is not None:
            lower_threads(backoff.begin_step())
        step = packed[: len(ids)], packed[len(ids) : end], packed[end:behind], self._attention
        if fed:
            hidden = self._core.hidden_packed(*step)
            logits = self._core.project(hidden.index_select(0, packed[behind:]))
            for reader, part, first in fed:
                reader.add(hidden[part], first)
        else:
            logits = self._core.decode_packed(*step)
        if backoff is not None:
            backoff.end_step(len(ids))
        return logits
