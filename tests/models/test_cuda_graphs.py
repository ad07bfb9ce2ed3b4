"""Recorded decode steps: sizes, padding, repetition, and devices that cannot record."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from asyncgen import native
from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.models.attention.paged.fused import FusedKernel
from asyncgen.models.attention.paged.kernel_probe import find_fused_kernel
from asyncgen.models.attention.paged.paged_attention import PagedAttention
from asyncgen.models.cuda_graphs import CudaRecorder, DecodeGraphs, page_sizes, row_sizes
from tests.doubles.recorders import CallRecorder, NoRecorder, TapeRecorder
from tests.doubles.varlen import varlen_attn
from tests.models.packing import VARIANTS, Row, alone, make_rows, model, num_groups, packed

if TYPE_CHECKING:
    from asyncgen.models.decoder import DecoderLM

KERNEL = FusedKernel(varlen_attn, True, options={"enable_gqa": True})
GATHERING = FusedKernel(varlen_attn, False, options={"enable_gqa": True})
PAGE = 4


@pytest.mark.parametrize(
    ("most", "intervals", "expected"),
    [
        (1, 0, [1]),
        (8, 0, [1, 2, 4, 8]),
        (100, 0, [1, 2, 4, 8, 16, 32, 64, 100]),
        (1000, 0, [1, 2, 4, 8, 16, 32, 64, 128, 256]),
        (64, 4, [16, 32, 48, 64]),
        (10, 3, [4, 7, 10]),
        (2, 5, [1, 2]),
    ],
)
def test_numbers_of_rows(most: int, intervals: int, expected: list[int]) -> None:
    assert row_sizes(most, intervals) == expected


@pytest.mark.parametrize(
    ("most", "page_size", "intervals", "expected"),
    [
        (32, 256, 0, [4, 8, 16, 32]),
        (20, 256, 0, [4, 8, 16, 20]),
        (3, 256, 0, [3]),
        (5, 4096, 0, [1, 2, 4, 5]),
        (32, 256, 2, [16, 32]),
    ],
)
def test_numbers_of_pages(most: int, page_size: int, intervals: int, expected: list[int]) -> None:
    assert page_sizes(most, page_size, intervals) == expected


def test_copied_pages_have_sizes_for_short_texts() -> None:
    assert page_sizes(20, 256, copied=True) == [1, 2, 4, 8, 16, 20]
    assert page_sizes(32, 256, 2, copied=True) == [16, 32]


class Decoded:
    """Texts that are decoded token by token, with a recorder, after a prompt that is not."""

    def __init__(
        self,
        core: DecoderLM,
        recorder: Any,
        *,
        rows: list[int],
        pages: list[int],
        kernel: FusedKernel = KERNEL,
        page_size: int = PAGE,
        num_pages: int = 80,
        most_gathered: int = 2**30,
        after: int = 0,
    ) -> None:
        self.core = core
        storage = PagedStorage(
            core.config,
            num_pages + 1,
            page_size,
            device=core.device,
            dtype=core.dtype,
            heads_first=False,
        )
        storage.data.fill_(torch.nan)
        self.storage = storage
        self.prompts = PagedAttention(core.config, storage)
        self.graphs = DecodeGraphs(
            core,
            storage,
            kernel,
            recorder,
            rows=rows,
            pages=pages,
            scratch=num_pages,
            most_gathered=most_gathered,
            after=after,
        )

    def prefill(self, rows: list[Row], counts: list[int]) -> None:
        for row, count in zip(rows, counts, strict=True):
            row.count = count
            packed(self.core, self.prompts, [row])
            row.start += row.count
            row.count = 1

    def step(self, rows: list[Row]) -> Tensor | None:
        for row in rows:
            row.forget(self.storage)
        logits = self.graphs.logits(rows, [int(row.ids[row.start]) for row in rows])
        for row in rows:
            row.start += 1
        return logits


def check(decoded: Decoded, rows: list[Row], expected: list[Tensor], chooser: random.Random) -> int:
    """Decode random ones together, to the ends of their texts; tell how many steps that took."""
    for steps in range(1000):
        left = [number for number, row in enumerate(rows) if row.start < len(row.ids)]
        if not left:
            return steps
        chosen = chooser.sample(left, chooser.randint(1, min(len(left), 4)))
        logits = decoded.step([rows[number] for number in chosen])
        assert logits is not None and len(logits) == len(chosen)
        for number, found in zip(chosen, logits, strict=True):
            wanted = expected[number][rows[number].start - 1]
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    raise AssertionError


@pytest.fixture(autouse=True)
def torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tape records what torch computes, as an accelerator does: there are no other kernels."""
    monkeypatch.setattr(native, "kernels", None)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("recorder", [CallRecorder, TapeRecorder])
@pytest.mark.parametrize("kernel", [KERNEL, pytest.param(GATHERING, marks=pytest.mark.gate)])
def test_recorded_steps_equal_each_text_alone(
    variant: str, recorder: type, kernel: FusedKernel
) -> None:
    core, chooser = model(variant), random.Random(1)
    groups = num_groups(core)
    most = 80 * groups
    decoded = Decoded(
        core, recorder(), rows=[1, 2, 4], pages=[3, 12], kernel=kernel, num_pages=most
    )
    rows = make_rows([30, 9, 17, 40, 12], PAGE, chooser.sample(range(most), most), 0, groups)
    expected = [alone(core, row.ids) for row in rows]
    decoded.prefill(rows, [7, 1, 16, 5, 11])
    assert check(decoded, rows, expected, chooser) > 20
    assert decoded.graphs.failure is None
    assert {size for size, _ in decoded.graphs.sizes} == {1, 2, 4}
    # Where every layer has a window, a table begins with it and is never longer.
    wanted = {3} if variant == "mistral" else {3, 12}
    assert {pages for _, pages in decoded.graphs.sizes} == wanted


def test_padding_rows_write_to_no_used_block() -> None:
    core = model("llama")
    decoded = Decoded(core, TapeRecorder(), rows=[4], pages=[3])
    before = decoded.storage.data.clone()
    [row] = make_rows([9], PAGE, [17, 3, 40])
    decoded.prefill([row], [5])
    for _ in range(4):
        logits = decoded.step([row])
        assert logits is not None and logits.shape == (1, core.config.vocab_size)
    written = (decoded.storage.data.isnan() != before.isnan()).flatten(3).any(-1).any(1).any(0)
    # Its three pages, and the one of the padding, cleared when this began.
    assert written.nonzero()[:, 0].tolist() == [3, 17, 40]
    scratch = decoded.storage.data[:, :, -1]
    assert torch.isfinite(scratch).all()


def test_ids_that_only_the_device_knows() -> None:
    core = model("llama")
    decoded = Decoded(core, TapeRecorder(), rows=[4], pages=[3])
    rows = make_rows([9, 9], PAGE, list(range(6)))
    expected = [alone(core, row.ids) for row in rows]
    decoded.prefill(rows, [5, 6])
    late = torch.tensor([int(rows[1].ids[6])])
    found = decoded.graphs.logits(rows, [int(rows[0].ids[5]), 0], lambda ids: ids[1:2].copy_(late))
    assert found is not None
    torch.testing.assert_close(found[0], expected[0][5], atol=1e-5, rtol=0)
    torch.testing.assert_close(found[1], expected[1][6], atol=1e-5, rtol=0)


def test_the_logits_of_a_step_outlive_the_next() -> None:
    core = model("llama")
    decoded = Decoded(core, TapeRecorder(), rows=[1], pages=[3])
    [row] = make_rows([9], PAGE, [0, 1, 2])
    decoded.prefill([row], [5])
    first = decoded.step([row])
    assert first is not None
    kept = first.clone()
    decoded.step([row])
    assert torch.equal(first, kept)


def test_too_large_batches_are_not_recorded() -> None:
    core = model("llama")
    decoded = Decoded(core, CallRecorder(), rows=[1, 2], pages=[2])
    rows = make_rows([12] * 3, PAGE, list(range(9)))
    decoded.prefill(rows, [3] * 3)
    assert decoded.graphs.logits(rows, [0] * 3) is None
    assert decoded.graphs.logits([Row(rows[0].ids, rows[0].pages, 8, 1)], [0]) is None
    assert decoded.graphs.sizes == []


def test_a_size_is_recorded_when_it_has_been_wanted_often_enough() -> None:
    decoded = Decoded(model("llama"), CallRecorder(), rows=[1, 2], pages=[3], after=2)
    rows = make_rows([12, 12], PAGE, list(range(6)))
    decoded.prefill(rows, [3, 3])
    for number in range(3):
        assert (decoded.graphs.logits(rows[:1], [0]) is not None) is (number == 2)
    assert decoded.graphs.logits(rows, [0, 0]) is None
    assert decoded.graphs.sizes == [(1, 3)]
    decoded.graphs.warm()
    assert decoded.graphs.logits(rows, [0, 0]) is not None


def test_warming_records_the_sizes_of_short_texts_once() -> None:
    recorder = CallRecorder()
    decoded = Decoded(model("llama"), recorder, rows=[1, 2, 4], pages=[2, 4])
    decoded.graphs.warm()
    decoded.graphs.warm()
    assert decoded.graphs.sizes == [(4, 2), (2, 2), (1, 2)]
    assert recorder.num_recorded == 3


def test_forgotten_recordings_are_made_anew_with_the_weights_of_now() -> None:
    recorder = CallRecorder()
    decoded = Decoded(model("llama"), recorder, rows=[1], pages=[3], after=2)
    decoded.graphs.warm()
    decoded.graphs.forget()
    assert decoded.graphs.sizes == []
    rows = make_rows([12], PAGE, list(range(3)))
    decoded.prefill(rows, [3])
    for number in range(3):
        assert (decoded.graphs.logits(rows, [0]) is not None) is (number >= 1)
    assert recorder.num_recorded == 2


def test_a_recording_has_its_memory_to_itself() -> None:
    core = model("llama")
    decoded = Decoded(core, TapeRecorder(), rows=[2], pages=[3])
    decoded.graphs.warm()
    assert 2 not in core._spaces


def test_device_without_graph_recording_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    decoded = Decoded(model("llama"), NoRecorder(), rows=[1, 2], pages=[3])
    rows = make_rows([9, 9], PAGE, list(range(6)))
    decoded.prefill(rows, [5, 5])
    with caplog.at_level(logging.WARNING):
        decoded.graphs.warm()
        assert decoded.step(rows) is None
        assert decoded.step(rows[:1]) is None
    [record] = caplog.records
    assert "operation not permitted" in record.getMessage()
    assert decoded.graphs.failure is not None and decoded.graphs.sizes == []


def test_steps_that_would_copy_too_much_are_not_recorded() -> None:
    core = model("llama")
    page = 2 * PAGE * core.config.num_key_value_heads * core.config.head_dim * 4
    options: Any = {"rows": [1, 2], "pages": [3], "most_gathered": 5 * page}
    for kernel, expected in ((GATHERING, [(1, 3)]), (KERNEL, [(2, 3), (1, 3)])):
        decoded = Decoded(core, CallRecorder(), kernel=kernel, **options)
        decoded.graphs.warm()
        assert decoded.graphs.sizes == expected and decoded.graphs.failure is None


class ShortOfMemory(CallRecorder):
    """Has no memory for a step of several rows."""

    def record(self, function: Any) -> Any:
        """Fail as a device does, and again when the recording is ended."""
        if len(function()) == 1:
            return super().record(function)
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        finally:
            raise RuntimeError("capture was invalidated")


def test_a_size_that_memory_does_not_allow_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    decoded = Decoded(model("llama"), ShortOfMemory(), rows=[1, 2], pages=[3])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            decoded.graphs.warm()
    assert decoded.graphs.sizes == [(1, 3)] and decoded.graphs.failure is None
    [record] = caplog.records
    assert "2 rows of up to 12 tokens" in record.getMessage()


@pytest.mark.cuda
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_cuda_device_records_what_it_computes(variant: str) -> None:
    """Recorded, as it is, and densely on a CPU."""
    chooser = random.Random(2)
    core = model(variant, max_position_embeddings=2048)
    lengths = [300, 40, 520, 1100, 80]
    prompts = [250, 1, 510, 1020, 70]
    groups = num_groups(core)
    most = 30 * groups
    rows = make_rows(lengths, 256, chooser.sample(range(most), most), 0, groups)
    expected = [alone(core, row.ids) for row in rows]
    core = core.to("cuda", torch.bfloat16)
    probe = PagedStorage(core.config, 4, 256, device="cuda", dtype=torch.bfloat16)
    kernel = find_fused_kernel(core.config, probe)
    assert kernel is not None and kernel.is_recordable
    decoded = Decoded(
        core,
        CudaRecorder(torch.device("cuda")),
        rows=[1, 2, 4],
        pages=[4, 8],
        kernel=kernel,
        page_size=256,
        num_pages=most,
    )
    for row in rows:
        row.ids = row.ids.cuda()
    decoded.prefill(rows, prompts)
    decoded.graphs.warm()
    assert decoded.graphs.failure is None
    for _ in range(60):
        left = [number for number, row in enumerate(rows) if row.start < len(row.ids)]
        if not left:
            break
        chosen = chooser.sample(left, chooser.randint(1, min(len(left), 4)))
        some = [rows[number] for number in chosen]
        eager = torch.cat(packed(core, decoded.prompts, some))
        recorded = decoded.step(some)
        assert recorded is not None
        torch.testing.assert_close(recorded, eager, atol=2e-2, rtol=2e-2)
        for number, found in zip(chosen, recorded.float().cpu(), strict=True):
            wanted = expected[number][rows[number].start - 1]
            assert (found - wanted).abs().max() < 0.15 * expected[number].std()


@pytest.mark.cuda
def test_a_cuda_recording_that_fails_leaves_the_device_usable() -> None:
    device = torch.device("cuda")
    recorder, stream = CudaRecorder(device), torch.cuda.current_stream(device)
    values = torch.ones(4, device=device)
    calls = []

    def reads_back() -> Tensor:
        calls.append(1)
        return values * values.sum().item() if len(calls) > 2 else values

    with pytest.raises(RuntimeError):
        recorder.record(reads_back)
    assert torch.cuda.current_stream(device) == stream
    assert (values + 1).tolist() == [2.0] * 4
    repeat = CudaRecorder(device).record(lambda: values * 2)
    values.fill_(5)
    assert repeat().tolist() == [10.0] * 4
