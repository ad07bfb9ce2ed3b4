"""An engine over an exact model, driven step by step, with its books proved after every step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asyncgen.engine.requests.admission import Admission
from asyncgen.engine.requests.prepare import prepare_request
from asyncgen.engine.requests.served_model import ServedModel
from asyncgen.generation.stopping.cancel import CancelCriteria
from asyncgen.llm.opening import ModelSource, open_engine
from tests.doubles.models import TableModel, byte_tokenizer
from tests.doubles.sinks import RecordingSink
from tests.engine.making import seated

if TYPE_CHECKING:
    from asyncgen.engine.batch.batch import Batch
    from asyncgen.engine.kv_cache.block_pool import BlockPool
    from asyncgen.engine.requests.request import Request

PAGE_BYTES = 16
"""Keys and values of one position of a :class:`TableModel`."""

_TOKENIZER = byte_tokenizer()


class Bench:
    """An engine without a thread."""

    def __init__(
        self,
        model: Any = None,
        *,
        pages: int = 64,
        page_size: int = 4,
        max_running: int = 8,
        prefill_chunk_size: int | None = 8,
        position_bytes: int = PAGE_BYTES,
        **options: Any,
    ) -> None:
        """Open a model, a table model if none is given, over so many pages."""
        self.model = model or TableModel()
        self.admission = Admission(max_running=max_running, max_queue_size=None)
        source = ModelSource(
            source=self.model,
            tokenizer=_TOKENIZER,
            device=None,
            dtype=None,
            num_threads=None,
            revision=None,
            token=None,
            max_running=max_running,
            prefill_chunk_size=prefill_chunk_size,
            page_size=page_size,
            kv_cache_memory=pages * page_size * position_bytes,
            **options,
        )
        self.engine, self.opened = open_engine(source, bool, admission=self.admission)
        self.num_steps = 0

    @property
    def batch(self) -> Batch:
        """The shared batch."""
        assert self.engine._batch is not None
        return self.engine._batch

    @property
    def pool(self) -> BlockPool:
        """The pages."""
        assert self.engine._pool is not None
        return self.engine._pool

    def prepare(self, prompt: Any = "abc", **given: Any) -> tuple[Request, RecordingSink]:
        """A request as the async face makes it."""
        sink = RecordingSink()
        request = prepare_request(
            ServedModel.of(self.model, _TOKENIZER, self.opened.room),
            prompt,
            given,
            cancel=CancelCriteria(),
            sink=sink,
        )
        return replace(request, place=seated(self.admission)), sink

    def add(self, prompt: Any = "abc", **given: Any) -> tuple[Request, RecordingSink]:
        """Prepare and queue."""
        request, sink = self.prepare(prompt, **given)
        self.engine.add(request)
        return request, sink

    def step(self) -> None:
        """One step, and a look at the books."""
        self.engine.step()
        self.num_steps += 1
        self.batch.scheduler.check_integrity()

    def run(self, limit: int = 5000) -> None:
        """Until nobody is left."""
        while self.engine.has_work:
            self.step()
            assert self.num_steps < limit, "somebody starves"

    def require_empty(self) -> None:
        """Prove that nothing is held by anybody."""
        batch, scheduler = self.batch, self.batch.scheduler
        assert not self.engine.has_work
        assert not (batch.requests or batch.running or batch._num_decoding)
        assert not scheduler.has_pending_requests()
        assert self.pool.num_used == self.pool.num_reserved == 0
        assert self.pool.num_available == self.pool.num_pages
        assert (self.admission.num_waiting, self.admission.num_running) == (0, 0)
        scheduler.check_integrity()


def ids_of(sink: RecordingSink, index: int = 0) -> list[int]:
    """Tokens of a sample so far."""
    return [
        token
        for item in sink.items
        if not isinstance(item, BaseException) and item.index == index
        for token in item.token_ids
    ]


def alone(
    model: Any, prompt: Any, *, position_bytes: int = PAGE_BYTES, **given: Any
) -> list[list[int]]:
    """Tokens of each sample of a request that has an engine for itself, in the side lane."""
    bench = Bench(model, pages=256, prefill_chunk_size=1000, position_bytes=position_bytes)
    request, sink = bench.prepare(prompt, **given)
    request = replace(request, alone="asked for")
    bench.engine.add(request)
    bench.run()
    return [ids_of(sink, index) for index in range(request.params.num_samples)]
