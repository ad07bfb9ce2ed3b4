"""Record decode steps as CUDA graphs and repeat them, for a few sizes of a step.

A decode step of a small batch is a few hundred kernels of microseconds each, and launching them
takes longer than running them. A recording launches all of them at once. It has one number of rows
and of pages, so a step is padded to the next recorded size. Steps that prefill, and those beyond
the largest size, run without a recording.

The recorder is a parameter: only the few lines of `CudaRecorder` depend on the device.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from asyncgen.models.attention.paged.graph_buffers import GraphRows
from asyncgen.models.attention.paged.packed_rows import place_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from asyncgen.cache.paged_storage import PagedStorage
    from asyncgen.models.attention.paged.fused import FusedKernel
    from asyncgen.models.attention.paged.packed_rows import PackedRow


MOST_ROWS: Final = 256
"""Larger steps keep the device busy without a recording."""

FEWEST_KEYS: Final = 1024
"""Texts of so many tokens and less share their recordings."""

PATIENCE: Final = 16
"""Steps of a size before it is recorded. Recording takes as long as about so many steps, so it does
not pay for a size that is used briefly."""

_log = logging.getLogger("asyncgen.models")
_one_at_a_time = threading.Lock()


def row_sizes(most: int, intervals: int = 0) -> list[int]:
    """List the numbers of rows to record.

    Args:
        most: Rows of the largest step.
        intervals: Sizes that are evenly apart, 1 or more; 0: each about twice the one before.

    Returns:
        In ascending order; the last one is ``most``, but for 256 at most.
    """
    most = min(most, MOST_ROWS)
    return _spread(most, intervals) if intervals else _doubled(1, most)


def page_sizes(most: int, page_size: int, intervals: int = 0, *, copied: bool = False) -> list[int]:
    """List the numbers of pages a row to record; arguments and result as of `row_sizes`.

    Kernels split their work by the longest possible text, so one recording for all lengths would be
    slow for short ones.

    Args:
        most: Pages of the longest text.
        page_size: Tokens of a page.
        intervals: As of `row_sizes`.
        copied: True if a step copies all pages that its rows may have: then short texts have sizes
            of their own as well.
    """
    if intervals:
        return _spread(most, intervals)
    first = 1 if copied else max(FEWEST_KEYS // page_size, 1)
    return _doubled(min(most, first), most)


def _doubled(first: int, most: int) -> list[int]:
    sizes = [first]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return sizes


def _spread(most: int, intervals: int) -> list[int]:
    return sorted({-(-most * number // intervals) for number in range(1, intervals + 1)})


class Recorder(Protocol):
    """Records the device work of a function."""

    def record(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Record a function.

        Args:
            function: Asks the same of the device at every call, and waits for nothing.

        Returns:
            Function that repeats it on the same memory, and returns what ``function`` returned: the
                same tensor each time.

        Raises:
            Exception: It cannot be recorded.
        """


class CudaRecorder:
    """Records CUDA graphs, all of them in one pool of memory: they never run at the same time.

    Record and repeat on the same thread.
    """

    def __init__(self, device: torch.device) -> None:
        """Prepare.

        Args:
            device: A CUDA device.
        """
        self._device = device
        self._stream: Any = None
        self._pool: Any = None

    def record(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """See `Recorder`."""
        # Two engines of a process may not record at the same time.
        with _one_at_a_time, torch.cuda.device(self._device):
            if self._stream is None:
                self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            here = torch.cuda.current_stream(self._device)
            self._stream.wait_stream(here)
            graph = torch.cuda.CUDAGraph()
            try:
                # A recording that fails inside `torch.cuda.graph` leaves its stream as the current
                # one; this block restores the thread's own stream in any case.
                with torch.cuda.stream(self._stream):
                    # Libraries initialise themselves in their first calls, which cannot be
                    # recorded.
                    for _ in range(2):
                        function()
                    # Other threads of the application may use the device meanwhile.
                    with torch.cuda.graph(
                        graph, self._pool, self._stream, capture_error_mode="thread_local"
                    ):
                        made = function()
            except BaseException:
                self._leave_pool()
                raise
            finally:
                here.wait_stream(self._stream)

        def repeat() -> Tensor:
            graph.replay()
            return made

        return repeat

    def _leave_pool(self) -> None:
        """Release the memory pool of a recording that failed.

        torch 2.11 still counts it as recording, and would give no memory back any more (pytorch
        pull request 180395).
        """
        pool, self._pool = self._pool, None
        leave = getattr(torch._C, "_cuda_endAllocateToPool", None)
        if leave is not None:
            with suppress(RuntimeError):  # it was left already
                leave(torch.cuda.current_device(), pool)


class DecodeGraphs:
    """The recordings of a model over pages, made after a size was asked for a few times."""

    def __init__(
        self,
        core: Any,
        storage: PagedStorage,
        kernel: FusedKernel,
        recorder: Recorder,
        *,
        rows: Sequence[int],
        pages: Sequence[int],
        scratch: int,
        most_gathered: int,
        after: int = PATIENCE,
    ) -> None:
        """Prepare; nothing is recorded yet.

        Args:
            core: The model; computes packed rows.
            storage: Its pages.
            kernel: Kernel of the attention.
            recorder: Makes the recordings.
            rows: Numbers of rows, ascending.
            pages: Numbers of pages a row, ascending.
            scratch: A page of the storage that no request gets.
            most_gathered: Bytes of a layer's keys and values that a step may copy together, if the
                kernel takes no table of pages; larger steps are not recorded.
            after: Steps of a size that run without a recording before it is made.
        """
        self._core = core
        self._storage = storage
        self._kernel = kernel
        self._recorder = recorder
        self._rows, self._pages = list(rows), list(pages)
        self._scratch = scratch
        self._after = after
        page_bytes = storage.data[0, :, 0].nbytes
        self._most_seen = storage.plan.blocks_seen(sys.maxsize, storage.page_size)
        self._most_pages = None if kernel.reads_pages else most_gathered // page_bytes
        self._recorded: dict[tuple[int, int], _Recorded] = {}
        self._too_large: set[tuple[int, int]] = set()
        self._asked: Counter[tuple[int, int]] = Counter()
        self._out: Tensor | None = None
        storage.clear([scratch])
        self.failure: str | None = None

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Rows and pages a row of each recording, in the order in which they were made."""
        return list(self._recorded)

    @torch.no_grad()
    def warm(self) -> None:
        """Record all numbers of rows for short texts, the largest first: memory is shared best."""
        for rows in reversed(self._rows):
            self._find(rows, self._pages[0], at_once=True)

    def forget(self) -> None:
        """Drop all recordings; sizes are recorded anew as they come up."""
        self._recorded.clear()

    @torch.no_grad()
    def logits(
        self,
        rows: Sequence[PackedRow],
        ids: Sequence[int],
        insert: Callable[[Tensor], object] | None = None,
    ) -> Tensor | None:
        """Compute rows of one token each.

        Args:
            rows: At least one.
            ids: Ids of their tokens.
            insert: Writes ids that only the device knows to a tensor of all ids, ``[>= R]``.

        Returns:
            Logits ``[R, V]``, a new tensor; ``None`` if there is no recording for such rows, or not
            yet.
        """
        size = self._storage.page_size
        count = _fitting(self._rows, len(rows))
        blocks = max(row.start for row in rows) // size + 1
        pages = _fitting(self._pages, min(blocks, self._most_seen))
        if count is None or pages is None:
            return None
        recorded = self._find(count, pages)
        if recorded is None:
            return None
        begun = [
            row.begun_page(size)
            for group in range(len(self._storage.plan.groups))
            for row in place_rows(rows, group)
        ]
        self._storage.clear([page for page in begun if page is not None])
        recorded.fixed.place(rows, ids)
        if insert is not None:
            insert(recorded.fixed.ids)
        # The next step overwrites these, perhaps before anybody has read them.
        return recorded.repeat()[: len(rows)].clone()

    def _find(self, rows: int, pages: int, *, at_once: bool = False) -> _Recorded | None:
        """Return the recording of a size, if it pays to have one; a failure is the last attempt."""
        found = self._recorded.get((rows, pages))
        if found is not None or self.failure is not None:
            return found
        if self._most_pages is not None and rows * pages > self._most_pages:
            return None
        if (rows, pages) in self._too_large:
            return None
        self._asked[rows, pages] += 1
        if self._asked[rows, pages] <= self._after and not at_once:
            return None
        try:
            found = self._record(rows, pages)
        except Exception as error:
            self._give_up(_cause(error), rows, pages)
            return None
        self._recorded[rows, pages] = found
        return found

    def _record(self, rows: int, pages: int) -> _Recorded:
        storage, core = self._storage, self._core
        fixed = GraphRows(
            core.config, storage, self._kernel, rows=rows, pages=pages, scratch=self._scratch
        )
        last = torch.arange(rows, dtype=torch.int64, device=storage.device)

        def compute() -> Tensor:
            ids, positions = fixed.ids.long(), fixed.positions.long()
            made: Tensor = core.decode_packed(ids, positions, last, fixed, is_recorded=True)
            return made

        if self._out is None:
            # All sizes write their logits to one place; each would keep its own otherwise.
            first = compute()
            with torch.inference_mode(False):
                self._out = first.new_empty(self._rows[-1], first.shape[1])
        out = self._out[:rows]
        repeat = self._recorder.record(lambda: out.copy_(compute()))
        return _Recorded(fixed, repeat, core.take_workspace(rows))

    def _give_up(self, error: BaseException, rows: int, pages: int) -> None:
        """Go on without this recording, or without any, and log the reason once."""
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, torch.OutOfMemoryError):
            self._too_large.add((rows, pages))
            _log.warning(
                "decode steps of %d rows of up to %d tokens run without a CUDA graph: %s; a "
                "smaller `kv_cache_memory` leaves more room",
                rows,
                pages * self._storage.page_size,
                reason,
            )
            return
        self.failure = reason
        self._recorded.clear()
        _log.warning(
            "decode steps run without CUDA graphs, and so slower with few streams, since "
            "recording one failed: %s",
            reason,
        )


def _cause(error: BaseException) -> BaseException:
    """Return the first error of a chain: the end of a recording that has failed fails as well."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def why_not(core: Any, kernel: FusedKernel | None) -> str | None:
    """Give the reason why the decode steps of a model cannot be recorded; ``None`` if they can.

    Args:
        core: The model.
        kernel: Fused attention of the device for it.
    """
    if core.packed_length is not None:
        return "the angles of its rope change with the positions of every step"
    if kernel is None:
        return "torch.nn.attention.varlen has no kernel for this device, dtype and page size"
    if not all(kernel.serves(options) for options in core.config.attention):
        return "no fused kernel has the options of its attention"
    if not kernel.is_recordable:
        return "torch.nn.attention.varlen computes no rows of fixed memory on this device"
    return None


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A recording and the memory that it works on, which no other recording has."""

    fixed: GraphRows
    repeat: Callable[[], Tensor]
    workspace: object


def _fitting(sizes: Sequence[int], least: int) -> int | None:
    """Return the smallest size that is enough; ``None`` if there is none."""
    return next((size for size in sizes if size >= least), None)
