"""Find the fused attention that works on a device by trying it before it is used.

What works depends on the build of torch, on the device, on the page size, and on kernels that the
application has put in the place of torch's. So no version is read. A parameter that `varlen_attn`
does not have is left out, and the result is compared with the plain way on random numbers, on rows
of all kinds that a step may have. Several ways are tried, the best first.

torch's kernels have been wrong in silence: with a table of pages and keys split among blocks, rows
after the first were not written (pytorch issue 194167). One split a row avoids that, and makes a
row's numbers independent of the other rows; and the probe would notice.
"""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.families.plans.attention_options import AttentionOptions
from asyncgen.models.attention.paged.fused import FusedKernel, FusedRows
from asyncgen.models.attention.paged.graph_buffers import GraphRows
from asyncgen.models.attention.paged.packed_rows import PlacedRow
from asyncgen.models.attention.paged.prefill import PrefillRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from asyncgen.families.config import ModelConfig


LARGEST_DEVIATION: Final = 0.02
"""Length of the difference of two results for a token and head, over the length of either. Numbers
in 16 bits deviate by a quarter of that."""

LONG_TEXTS: Final = (1300, 1100)
"""Keys of rows that a kernel may split among blocks."""

LONGEST_WINDOW: Final = 300
"""Shorter than these texts; a kernel that has one window right has them all."""

SHARPNESS: Final = 3.0
"""Standard deviation of the scores: few keys count, as in a trained model. With flat scores a
result is the mean of a thousand values, close to zero, and any error would be small beside it."""

GARBAGE: Final = 1000.0
"""Number behind the keys in use: finite, as it always is there, and large enough to be noticed."""

SINKS: Final = (4.0, 12.0)
"""Smallest and largest sink: around the logarithms of the sums that such scores have."""

IMPLEMENTATIONS: Final = {9: "FA3", 10: "FA4"}
"""Implementations that read pages if they are installed, by major compute capability."""

_log = logging.getLogger("asyncgen.models")


def find_fused_kernel(config: ModelConfig, storage: PagedStorage) -> FusedKernel | None:
    """Find the best fused kernel that this device has for this storage; ``None``: nothing fused.

    If torch's own kernels read no table of pages and an installed implementation does, that one is
    activated (`torch.nn.attention.activate_flash_attention_impl`) for the whole process. Ways that
    are not used, and the reasons, are logged at the level INFO.

    Args:
        config: The model's.
        storage: Pages on an accelerator, with tokens first.
    """
    if storage.heads_first:
        return None
    if storage.scales is not None:
        _log.info("attention runs unfused: torch has no fused kernel for packed pages")
        return None
    if storage.dtype not in (torch.float16, torch.bfloat16):
        _log.info("attention runs unfused: torch has no fused kernel for %s", storage.dtype)
        return None
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        _log.info("attention runs unfused: %s", error)
        return None
    known = inspect.signature(varlen_attn).parameters
    options: dict[str, Any] = {}
    if config.num_attention_heads > config.num_key_value_heads and "enable_gqa" in known:
        options["enable_gqa"] = True
    kernel = FusedKernel(varlen_attn, False, options=options)
    probe = _Probe(config, storage)
    found = None
    if {"block_table", "seqused_k"} <= known.keys():
        if "num_splits" in known:
            options = {**options, "num_splits": 1}
        found = _find_for_pages(probe, replace(kernel, reads_pages=True, options=options))
    else:
        _log.info("attention reads no pages in place: this torch takes no table of pages")
    found = found or probe.accept(kernel, "over keys copied together")
    if found is not None and any(options.has_sinks for options in config.attention):
        found = probe.probe_sinks(found)
    left_out = 0 if found is None else sum(not found.serves(each) for each in config.attention)
    if left_out:
        _log.info(
            "attention runs unfused in %d of %d layers, for their soft caps, sinks, slopes or "
            "chunked windows",
            left_out,
            config.num_hidden_layers,
        )
    return None if left_out == config.num_hidden_layers else found


def _find_for_pages(probe: _Probe, kernel: FusedKernel) -> FusedKernel | None:
    """Find the first way that reads pages in place and works."""
    bare = replace(kernel, wants_key_ends=False)
    found = probe.accept(kernel, "over a table of pages, with the ends of keys")
    found = found or probe.accept(bare, "over a table of pages")
    if found is not None:
        return found
    name = _activate(probe.device)
    if name is None:
        return None
    found = probe.accept(bare, f"over a table of pages, by {name}")
    if found is None:
        torch.nn.attention.restore_flash_attention_impl()
    return found


def _activate(device: torch.device) -> str | None:
    """Activate the implementation that is made for a device, if it is installed.

    Returns:
        Its name; ``None`` if there is none, or if the application has chosen one already.
    """
    attention: Any = torch.nn.attention
    if not hasattr(attention, "current_flash_attention_impl") or device.type != "cuda":
        return None
    name = IMPLEMENTATIONS.get(torch.cuda.get_device_capability(device)[0])
    if name is None or attention.current_flash_attention_impl() is not None:
        return None
    try:
        attention.activate_flash_attention_impl(name)
    except Exception as error:  # not installed, or made for another torch
        _log.info("attention is not computed by %s: %s", name, _first_line(error))
        return None
    return name


@dataclass(frozen=True, slots=True)
class _Case:
    """A step over one layer, of random numbers.

    Attributes:
        config: Configuration of one layer.
        storage: Its pages; the last one belongs to no row.
        rows: Rows of the step.
        heads: Input of the layer, ``[N, H + 2K, D]``.
        expected: Result of the plain way, float32 ``[N, H, D]``.
        is_single: True if all rows have one token, so that the step could be recorded.
        sinks: Sinks of the layer, ``[H]``, if it has any.
    """

    config: ModelConfig
    storage: PagedStorage
    rows: list[PlacedRow]
    heads: Tensor
    expected: Tensor
    is_single: bool
    sinks: Tensor | None

    def compute(self, kernel: FusedKernel) -> Tensor:
        """Compute the result ``[N, H * D]`` of the rows as they come."""
        rows = FusedRows(self.rows, self.storage, self.config.window(0), kernel)
        return rows.compute(0, self.heads, None, self.sinks)

    def compute_recorded(self, kernel: FusedKernel) -> Tensor:
        """Compute the same from fixed memory, with a row of padding, and room for another page."""
        count = len(self.rows)
        fixed = GraphRows(
            self.config,
            self.storage,
            kernel,
            rows=count + 1,
            pages=max(len(row.pages) for row in self.rows) + 1,
            scratch=self.storage.num_pages - 1,
        )
        fixed.place(self.rows, [0] * count)
        fixed.begin(count + 1, 1)
        padded = torch.cat((self.heads, torch.zeros_like(self.heads[:1])))
        return fixed.attend(0, padded, self.sinks)[:count]


class _Probe:
    """Steps of all kinds, and the results that the plain way gives."""

    def __init__(self, config: ModelConfig, storage: PagedStorage) -> None:
        """Compute the expected results.

        Args:
            config: The model's.
            storage: For its dtype, page size and device.
        """
        self.device = storage.device
        first, second = LONG_TEXTS
        # Kernels treat single tokens alone differently from the same beside prompts.
        singles = [(first - 1, 1), (4, 1), (second - 1, 1)]
        chunks = [(second - 40, 40), (0, 70), (storage.page_size - 1, 2)]
        generator = torch.Generator(storage.device).manual_seed(0)
        kinds = {each.kind for each in config.attention}
        plain = {replace(kind, has_sinks=False) for kind in kinds}
        plain = {kind for kind in plain if kind.is_fusable} or {AttentionOptions()}

        def cases(options: AttentionOptions) -> list[_Case]:
            layer = _one_layer(config, options)
            steps = (singles, singles + chunks)
            return [_make_case(layer, storage, spans, generator) for spans in steps]

        self._cases = [case for kind in plain for case in cases(kind)]
        with_sinks = (kind for kind in kinds if kind.has_sinks)
        with_sinks = (kind for kind in with_sinks if replace(kind, has_sinks=False) in plain)
        self._sink_cases = [case for kind in with_sinks for case in cases(kind)]

    def accept(self, kernel: FusedKernel, name: str) -> FusedKernel | None:
        """Compare a kernel with the plain way.

        Args:
            kernel: The kernel.
            name: Description of the way, for the log.

        Returns:
            The kernel, with a note if it cannot be recorded; ``None`` if it is wrong or fails.
        """
        for case in self._cases:
            reason = _fault(case, kernel, fixed=False)
            if reason is not None:
                _log.info("attention is not computed %s: %s", name, reason)
                return None
        for case in self._cases:
            reason = _fault(case, kernel, fixed=True) if case.is_single else None
            if reason is not None:
                _log.info("attention %s cannot be recorded: %s", name, reason)
                return replace(kernel, is_recordable=False)
        return kernel

    def probe_sinks(self, kernel: FusedKernel) -> FusedKernel:
        """Give the same kernel, which also asks for sums if its results with sinks are right."""
        try:
            from torch.nn.attention.varlen import AuxRequest
        except ImportError as error:
            _log.info("attention has no fused sinks: %s", error)
            return kernel
        asked = replace(kernel, sums_request=AuxRequest(lse=True))
        for case in self._sink_cases:
            reason = _fault(case, asked, fixed=False)
            if reason is None and case.is_single and kernel.is_recordable:
                reason = _fault(case, asked, fixed=True)
            if reason is not None:
                _log.info("attention has no fused sinks: %s", reason)
                return kernel
        return asked if self._sink_cases else kernel


def _fault(case: _Case, kernel: FusedKernel, *, fixed: bool) -> str | None:
    """Describe the error of a kernel's result; ``None``: there is none."""
    # Poison the memory: what is not written could hold the right result of the last probe.
    poison = torch.full_like(case.expected, torch.nan, dtype=case.heads.dtype)
    del poison
    try:
        found = (case.compute_recorded if fixed else case.compute)(kernel)
        difference = found.float().view(case.expected.shape) - case.expected
        lengths = torch.linalg.vector_norm(case.expected, dim=-1)
        deviations = (torch.linalg.vector_norm(difference, dim=-1) / lengths).amax(-1)  # [N]
        worst = int(deviations.nan_to_num(torch.inf).argmax())
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        return f"{type(error).__name__}: {_first_line(error)}"
    deviation = float(deviations[worst])
    if deviation < LARGEST_DEVIATION:
        return None
    row = max(number for number, row in enumerate(case.rows) if row.token <= worst)
    keys, window = case.rows[row].start + case.rows[row].count, case.config.window(0)
    seen = f"{keys} keys" if window is None else f"{keys} keys, a window of {window}"
    return f"row {row} ({seen}) deviates by {100 * deviation:.1f} %"


def _one_layer(config: ModelConfig, options: AttentionOptions) -> ModelConfig:
    """Configure one layer, with the usual scale and a window within the long texts."""
    window = None if options.window is None else min(options.window, LONGEST_WINDOW)
    return replace(
        config, num_hidden_layers=1, attention=(replace(options.kind, window=window),), ropes=None
    )


def _make_case(
    config: ModelConfig,
    like: PagedStorage,
    spans: Sequence[tuple[int, int]],
    generator: torch.Generator,
) -> _Case:
    """Draw a step.

    Args:
        config: Configuration of one layer.
        like: Storage whose page size, dtype and device are taken.
        spans: Start and number of tokens of each row.
        generator: Generator of the device.
    """
    size, device, heads = like.page_size, like.device, config.num_attention_heads
    needs = [-(-(start + count) // size) for start, count in spans]
    left = list(range(sum(needs)))  # the last pages first, so that none follows the one before
    rows, token = [], 0
    for (start, count), need in zip(spans, needs, strict=True):
        rows.append(PlacedRow(token, start, count, [left.pop() for _ in range(need)]))
        token += count

    def storage_of(dtype: torch.dtype) -> PagedStorage:
        return PagedStorage(
            config, sum(needs) + 1, size, device=device, dtype=dtype, heads_first=False
        )

    def drawn(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=like.dtype, device=device).normal_(generator=generator)

    storage, exact = storage_of(like.dtype), storage_of(torch.float32)
    storage.data.fill_(GARBAGE)
    storage.clear([storage.num_pages - 1])
    flat = storage.layers[0].flatten(1, 2)  # [2, P * page_size, K, D]
    queries = drawn(token, heads, config.head_dim) * SHARPNESS
    own = []
    for row in rows:
        end = row.start + row.count
        cells = torch.tensor(
            list(PlacedRow(0, 0, end, row.pages).cells(size)), dtype=torch.int64, device=device
        )
        flat[:, cells] = drawn(2, end, config.num_key_value_heads, config.head_dim)
        own.append(flat[:, cells[row.start :]])
    keys, values = torch.cat(own, dim=1)
    step = torch.cat((queries, keys, values), dim=1)
    exact.data.copy_(storage.data)
    expected = torch.empty(token, heads * config.head_dim, dtype=torch.float32, device=device)
    has_sinks = config.attention[0].has_sinks
    sinks = torch.linspace(*SINKS, heads, dtype=torch.float32, device=device) if has_sinks else None
    for row in rows:
        chunks = PrefillRows(
            [row], exact, config.attention[0].kind, heads // config.num_key_value_heads
        )
        chunks.attend(0, step.float(), expected, None, sinks)
    is_single = all(count == 1 for _, count in spans)
    return _Case(config, storage, rows, step, expected.view(token, heads, -1), is_single, sinks)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")
