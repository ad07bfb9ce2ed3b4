"""Test the programs of peers without their libraries; `test_rounds` runs two with theirs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from asyncgen_apps.bench.checkpoints import SHAPES, write_checkpoint
from asyncgen_apps.bench.peers.programs import llamacpp, transformers, vllm
from asyncgen_apps.bench.peers.programs.bandwidth import MemoryReader
from asyncgen_apps.bench.peers.programs.llamacpp import DecodeLoop, gguf_name, tensors
from tests.apps.bench.test_checkpoints import TINY

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_read_as_they_are_stored(dtype: str, tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    write_checkpoint(tmp_path, TINY, dtype)
    expected = load_file(tmp_path / "model.safetensors")
    got = dict(tensors(tmp_path / "model.safetensors"))
    assert got.keys() == expected.keys()
    for name, array in got.items():
        assert torch.equal(torch.from_numpy(array.copy()), expected[name].float()), name


def test_every_weight_of_a_shape_has_a_name_in_gguf() -> None:
    names = [gguf_name(name) for name, _ in TINY.tensors()]
    assert len(set(names)) == len(names)
    assert {"token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight"} <= set(names)


def test_experts_of_a_layer_are_one_tensor_in_gguf() -> None:
    numpy = pytest.importorskip("numpy")
    moe = replace(TINY, experts=3, chosen=2, style=SHAPES["moe"].style)
    found = [(name, numpy.full(size, number)) for number, (name, size) in enumerate(moe.tensors())]
    joined = dict(llamacpp.joined_experts(found))
    assert len({gguf_name(name) for name in joined}) == len(joined)
    down = joined["model.layers.1.mlp.experts.down_proj.weight"]
    assert down.shape == (3, moe.hidden, moe.ffn)
    numbers = {name: array.flat[0] for name, array in found}
    for expert in range(3):
        name = f"model.layers.1.mlp.experts.{expert}.down_proj.weight"
        assert (down[expert] == numbers[name]).all()


@pytest.mark.parametrize("module", [llamacpp, transformers])
def test_shared_prefix(module: Any) -> None:
    assert module.shared_prefix([1, 2, 3], [1, 2, 4, 5]) == 2
    assert module.shared_prefix([1, 2], [1, 2, 3]) == 2
    assert module.shared_prefix([], [1]) == 0


def test_bandwidth_is_measured() -> None:
    assert MemoryReader().measure(1 << 20, torch.get_num_threads())["bytes_per_second"] > 1e6


def test_vllm_gets_a_core_for_each_thread_and_no_second_process() -> None:
    wanted = vllm.environment(4)
    assert wanted["VLLM_CPU_OMP_THREADS_BIND"] == "0-3"
    assert wanted["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert vllm.environment(1)["VLLM_CPU_OMP_THREADS_BIND"] == "0"


class Batch:
    """Stands in for llama.cpp's structure of arrays."""

    def __init__(self, size: int) -> None:
        self.token = [0] * size
        self.pos = [0] * size
        self.n_seq_id = [0] * size
        self.seq_id = [[0] for _ in range(size)]
        self.logits = [False] * size
        self.n_tokens = 0


class Library:
    """Stands in for llama.cpp's functions: the next token is the last one and one more."""

    GGML_TYPE_F32 = 0

    def __init__(self) -> None:
        self.batches: list[list[tuple[int, int, int]]] = []
        self.removed: list[tuple[int, int]] = []
        self.opened: list[tuple[int, int]] = []
        self.batch = Batch(llamacpp.BATCH)

    def llama_context_default_params(self) -> SimpleNamespace:
        return SimpleNamespace()

    def llama_init_from_model(self, model: object, options: Any) -> int:
        self.opened.append((options.n_seq_max, options.n_ctx))
        return len(self.opened)

    def llama_free(self, context: int) -> None:
        pass

    def llama_get_memory(self, context: int) -> int:
        return context

    def llama_memory_seq_rm(self, memory: int, sequence: int, first: int, last: int) -> None:
        assert last == -1
        self.removed.append((sequence, first))

    def llama_decode(self, context: int, batch: Batch) -> int:
        taken = range(batch.n_tokens)
        self.batches.append([(batch.seq_id[i][0], batch.pos[i], batch.token[i]) for i in taken])
        return 0

    def llama_get_logits_ith(self, context: int, place: int) -> Any:
        import numpy

        assert self.batch.logits[place]
        return numpy.eye(100)[self.batch.token[place] + 1]


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> DecodeLoop:
    numpy = pytest.importorskip("numpy")
    monkeypatch.setattr(numpy.ctypeslib, "as_array", lambda row, shape: row)
    library = Library()
    made = DecodeLoop()
    made._lib, made._model, made._batch = library, object(), library.batch
    made._dtype, made._threads, made._words = "bfloat16", 1, 100
    made._open(alone=True, slots=1, length=512)
    return made


def run(loop: DecodeLoop, *prompts: list[int], new_tokens: int = 2) -> list[list[int]]:
    loop.prepare(
        [{"prompt": prompt, "new_tokens": new_tokens, "arrival": 0.0} for prompt in prompts]
    )
    for index, prompt in enumerate(prompts):
        loop.add(index, prompt, new_tokens)
    answers: list[list[int]] = [[] for _ in prompts]
    while any(len(answer) < new_tokens for answer in answers):
        for index, ids in loop.step():
            answers[index] += ids
    return answers


def test_texts_of_llamacpp_share_steps(loop: DecodeLoop) -> None:
    assert run(loop, [10, 11], [20], [30, 31, 32]) == [[12, 13], [21, 22], [33, 34]]
    first, second = loop._lib.batches
    assert sorted(first) == [(0, 0, 10), (0, 1, 11), (1, 0, 20), (2, 0, 30), (2, 1, 31), (2, 2, 32)]
    assert second == [(0, 2, 12), (1, 1, 21), (2, 3, 33)]
    assert loop._lib.opened == [(1, 768), (3, 768)]


def test_a_prompt_longer_than_a_batch_comes_in_pieces(
    loop: DecodeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llamacpp, "BATCH", 4)
    assert run(loop, [1, 2, 3, 4, 5, 6]) == [[7, 8]]
    assert [len(batch) for batch in loop._lib.batches] == [4, 2, 1]


def test_next_turn_computes_only_new_tokens(loop: DecodeLoop) -> None:
    (answer,) = run(loop, [1, 2, 3])
    run(loop, [1, 2, 3, *answer, 50, 51], new_tokens=1)
    assert loop._lib.removed == [(0, 0), (0, 4)]
    assert loop._lib.batches[-1] == [(0, 4, 5), (0, 5, 50), (0, 6, 51)]
    assert loop._lib.opened == [(1, 768)]


def test_more_texts_than_slots_wait(loop: DecodeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llamacpp, "MOST_SLOTS", 2)
    assert run(loop, [10], [20], [30]) == [[11, 12], [21, 22], [31, 32]]
    assert [len(batch) for batch in loop._lib.batches] == [2, 2, 1, 1]
