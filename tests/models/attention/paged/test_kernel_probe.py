"""The probe of a device's kernels: torch may lack parameters, and kernels may be wrong."""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.models.attention.paged import kernel_probe as kernel_probe
from asyncgen.models.attention.paged.fused import FusedKernel
from asyncgen.models.attention.paged.kernel_probe import find_fused_kernel
from tests.doubles.varlen import before_pages, varlen_attn, with_unwritten_rows
from tests.models.packing import model

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

SIZES = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "num_key_value_heads": 2}


def found_for(
    function: Callable[..., Tensor],
    monkeypatch: pytest.MonkeyPatch,
    *,
    variant: str = "llama",
    dtype: torch.dtype = torch.bfloat16,
    page_size: int = 256,
) -> FusedKernel | None:
    """Find the kernel if this is torch's function."""
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", function)
    more = SIZES if variant == "llama" else {}
    config = model(variant, torch.float32, **more).config
    storage = PagedStorage(config, 4, page_size, dtype=dtype, heads_first=False)
    return find_fused_kernel(config, storage)


@pytest.mark.parametrize("variant", ["llama", "no-groups", "mistral", "qwen2", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_pages_are_read_in_place_with_one_split_a_row(
    variant: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = found_for(varlen_attn, monkeypatch, variant=variant, dtype=dtype)
    assert kernel is not None and kernel.reads_pages and kernel.wants_key_ends
    assert kernel.options["num_splits"] == 1 and kernel.is_recordable
    assert ("enable_gqa" in kernel.options) is (variant not in ("no-groups", "gpt2"))


def test_rows_that_are_not_written_do_not_occur_with_one_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guard against pytorch issue 194167, in a torch that can be told not to split rows."""
    kernel = found_for(with_unwritten_rows(), monkeypatch)
    assert kernel is not None and kernel.reads_pages


def test_rows_that_are_not_written_are_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "asyncgen.models"):
        kernel = found_for(with_unwritten_rows(always=True), monkeypatch)
    assert kernel is not None and not kernel.reads_pages and kernel.is_recordable
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    deviation = re.search(r"row 2 \(1100 keys\) deviates by (\d+)", said[0])
    assert deviation is not None and int(deviation[1]) > 50


def test_a_torch_that_knows_no_pages(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "asyncgen.models"):
        kernel = found_for(before_pages, monkeypatch)
    assert kernel == FusedKernel(before_pages, False)
    [record] = caplog.records
    assert "takes no table of pages" in record.getMessage()


def refuses_key_ends(is_active: Callable[[], bool]) -> Callable[..., Tensor]:
    """FlashAttention 3: takes a table of pages, or the ends of keys; where it is not active, the
    second version, before it took tables."""

    def function(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor | None,
        max_q: int,
        max_k: int,
        *,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
        seqused_k: Tensor | None = None,
        block_table: Tensor | None = None,
        num_splits: int | None = None,
    ) -> Tensor:
        if block_table is not None:
            if not is_active() or cu_seq_k is not None:
                raise RuntimeError("If cu_seqlens_k is passed in, then page table is not supported")
            assert num_splits == 1 and seqused_k is not None
            ends = torch.cat((torch.zeros(1, dtype=torch.int32), seqused_k.cumsum(0)))
            cu_seq_k = ends.to(torch.int32)
        lengths: Any = (cu_seq_q, cu_seq_k, max_q, max_k)
        options: Any = {"scale": scale, "window_size": window_size, "enable_gqa": enable_gqa}
        pages: Any = {"seqused_k": seqused_k, "block_table": block_table}
        options |= pages
        return varlen_attn(query, key, value, *lengths, **options)

    return function


def test_a_kernel_that_refuses_the_ends_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Implementations("FA3", "FA3").put(monkeypatch, (9, 0))
    kernel = found_for(refuses_key_ends(lambda: True), monkeypatch)
    assert kernel is not None and kernel.reads_pages and not kernel.wants_key_ends
    assert there.active == "FA3"


def changed(change: Callable[..., Any]) -> Callable[..., Tensor]:
    """The documented function on changed options, which it gets as keywords by their names."""

    def function(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor | None,
        max_q: int,
        max_k: int,
        *,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
        seqused_k: Tensor | None = None,
        block_table: Tensor | None = None,
    ) -> Tensor:
        options: dict[str, Any] = {
            "scale": scale,
            "window_size": window_size,
            "enable_gqa": enable_gqa,
            "seqused_k": seqused_k,
            "block_table": block_table,
        }
        change(options)
        lengths: Any = (cu_seq_q, cu_seq_k, max_q, max_k)
        return varlen_attn(query, key, value, *lengths, **options)

    return function


def no_pages(options: dict[str, Any]) -> None:
    """Stand-in for FlashAttention 2 before it took tables."""
    if options["block_table"] is not None:
        raise RuntimeError("block_table is not supported\nand more")


def one_key_less(options: dict[str, Any]) -> None:
    """Hide the newest key."""
    if options["seqused_k"] is not None:
        options["seqused_k"] = options["seqused_k"] - 1


def a_wide_window(options: dict[str, Any]) -> None:
    """Show one key too many."""
    before, behind = options["window_size"]
    options["window_size"] = (before + (before >= 0), behind)


def a_wrong_page(options: dict[str, Any]) -> None:
    """Replace the last page of a long text by another one's."""
    if options["block_table"] is not None and options["block_table"].shape[1] > 4:
        options["block_table"] = options["block_table"].clone()
        options["block_table"][0, 4] = options["block_table"][0, 3]


@pytest.mark.parametrize(
    ("change", "variant"),
    [(no_pages, "llama"), (one_key_less, "llama"), (a_wrong_page, "llama")],
)
def test_kernel_that_fails_or_deviates_over_pages_gathers_them(
    change: Callable[..., Any],
    variant: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "asyncgen.models"):
        kernel = found_for(changed(change), monkeypatch, variant=variant)
    assert kernel is not None and not kernel.reads_pages
    reason = "RuntimeError: block_table is not supported" if change is no_pages else "deviates by"
    assert reason in caplog.records[0].getMessage()


def test_a_wrong_window_or_result_is_not_used_at_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "asyncgen.models"):
        assert found_for(changed(a_wide_window), monkeypatch, variant="mistral") is None
    assert "a window of 7" in caplog.records[0].getMessage()
    assert found_for(changed(a_wide_window), monkeypatch) is not None
    assert found_for(lambda *a, **o: -varlen_attn(*a, **o), monkeypatch) is None


def test_rows_without_queries_may_be_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def needs_queries(query: Tensor, key: Tensor, value: Tensor, *lengths: Any, **options: Any):  # type: ignore[no-untyped-def]
        if bool((lengths[0].diff() < 1).any()):
            raise RuntimeError("every row needs a query")
        return before_pages(query, key, value, *lengths, **options)

    with caplog.at_level(logging.INFO, "asyncgen.models"):
        kernel = found_for(needs_queries, monkeypatch, variant="no-groups")
    assert kernel is not None and not kernel.is_recordable
    assert "cannot be recorded: RuntimeError: every row" in caplog.records[-1].getMessage()


def test_missing_fused_kernel_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "asyncgen.models"):
        assert found_for(varlen_attn, monkeypatch, dtype=torch.float32) is None
        monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
        config = model("llama").config
        storage = PagedStorage(config, 4, 8, dtype=torch.bfloat16, heads_first=False)
        assert find_fused_kernel(config, storage) is None
        assert find_fused_kernel(config, PagedStorage(config, 4, 8)) is None
    first, second = (record.getMessage() for record in caplog.records)
    assert "torch.float32" in first and "varlen" in second


class Implementations:
    """Stand-in for torch's registry of installed and active implementations."""

    def __init__(self, installed: str | None, active: str | None = None) -> None:
        self.installed, self.active = installed, active

    def activate(self, name: str) -> None:
        """As `activate_flash_attention_impl`."""
        if name != self.installed:
            raise ModuleNotFoundError("No module named 'flash_attn_interface'")
        self.active = name

    def restore(self) -> None:
        """As `restore_flash_attention_impl`."""
        self.active = None

    def put(self, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> Implementations:
        """Put this in torch's place, on a device that is CUDA by name alone."""
        attention = "torch.nn.attention"
        monkeypatch.setattr(f"{attention}.activate_flash_attention_impl", self.activate)
        monkeypatch.setattr(f"{attention}.restore_flash_attention_impl", self.restore)
        monkeypatch.setattr(f"{attention}.current_flash_attention_impl", lambda: self.active)
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability)
        return self


CUDA = torch.device("cuda")


def test_installed_kernel_for_the_device_is_activated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there = Implementations("FA3").put(monkeypatch, (9, 0))
    assert kernel_probe._activate(CUDA) == "FA3" and there.active == "FA3"
    assert kernel_probe._activate(CUDA) is None, "the application's choice stays"
    there = Implementations(None).put(monkeypatch, (9, 0))
    with caplog.at_level(logging.INFO, "asyncgen.models"):
        assert kernel_probe._activate(CUDA) is None and there.active is None
    assert "No module named 'flash_attn_interface'" in caplog.records[0].getMessage()
    Implementations("FA3").put(monkeypatch, (8, 0))
    assert kernel_probe._activate(CUDA) is None
    assert kernel_probe._activate(torch.device("cpu")) is None


@pytest.mark.parametrize("works", [True, False])
def test_it_is_taken_back_if_it_does_not_help(works: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Implementations("FA3").put(monkeypatch, (9, 0))
    activate = kernel_probe._activate
    monkeypatch.setattr(kernel_probe, "_activate", lambda device: activate(CUDA))
    function = refuses_key_ends(lambda: works and there.active is not None)
    kernel = found_for(function, monkeypatch)
    assert kernel is not None and kernel.reads_pages is works
    assert there.active == ("FA3" if works else None)
