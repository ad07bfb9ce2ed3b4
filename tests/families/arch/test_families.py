"""Every family computes what the reference computes: in rows, in padded batches, among others."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen import native
from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.cache.states import StateStorage
from asyncgen.families.arch.registry import FAMILIES as DECLARED
from asyncgen.families.config import ModelConfig
from asyncgen.models.attention.paged.paged_attention import PagedAttention
from asyncgen.models.kernels.linear import Linear
from asyncgen.models.kernels.native_linear import NativeKernel, NativeStack
from asyncgen.models.mixers.hybrid_context import PackedHybrid
from asyncgen.models.mixers.packed_states import PackedStates
from tests.cases import some
from tests.doubles.tokenizers import save_tokenizer
from tests.families.arch.families import FAMILIES, STATES, make
from tests.families.arch.variants import VARIANTS
from tests.models.packing import block_by_block, make_rows, num_groups, packed_some

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from asyncgen.models.decoder import DecoderLM

transformers = pytest.importorskip("transformers")

LENGTH = 24
ROWS = [[5, 17, 3, 44, 9, 21, 80], [7, 8], [11, 64, 2, 90, 33, 12, 6, 28, 71, 15, 50]]


# Blocks of our kernels alone run in one call; in these our products take turns with torch: what is
# cut off, gated, repeated or weighed before an expert, norms without weights, learned activations,
# short convolutions with gates, factors on parts of a mixer.
NOT_IN_ONE_CALL = {
    "afmoe",
    "apertus",
    "bitnet",
    "dbrx",
    "diffllama",
    "falcon_h1",
    "gemma3n_text",
    "gemma4_text",
    "gemma4_unified_text",
    "lfm3",
    "llama4_text",
    "mimo_v2_flash",
    "nanochat",
    "olmo",
    "zamba2",
}
DTYPES = [
    dtype for dtype in (torch.float32, torch.bfloat16, torch.float16) if native.supports(dtype)
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Compute on one thread: matrices are tiny, more threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> asyncgen.Tokenizer:
    return asyncgen.load_tokenizer(save_tokenizer(tmp_path_factory.mktemp("text"), "byte_level"))


def compare(
    family: str, folder: Path, tokenizer: asyncgen.Tokenizer, **overrides: Any
) -> asyncgen.PreTrainedModel:
    """Compare logits, ids of a left-padded batch, and ids from the shared batch; return ours."""
    theirs = make(family, folder, **overrides)
    ours = asyncgen.load_model(folder, dtype="float32")
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 96, (2, 20), generator=generator)
    with torch.no_grad():
        expected = theirs(ids).logits
    torch.testing.assert_close(ours(ids).logits, expected, atol=1e-4, rtol=1e-4)

    widest = max(map(len, ROWS))
    padded = torch.tensor([[0] * (widest - len(row)) + row for row in ROWS])
    mask = torch.tensor([[0] * (widest - len(row)) + [1] * len(row) for row in ROWS])
    options: dict[str, Any] = {"max_new_tokens": LENGTH, "do_sample": False, "eos_token_id": None}
    together: Any = ours.generate(padded, attention_mask=mask, pad_token_id=0, **options)
    answers = together[:, widest:].tolist()
    for row, answer in zip(ROWS, answers, strict=True):
        assert len(answer) == LENGTH
        with torch.no_grad():  # one row at a time: its padded batches are not always those rows
            best = theirs(torch.tensor([row + answer])).logits[0].argmax(dim=-1).tolist()
        assert best[len(row) - 1 : -1] == answer

    async def shared() -> list[list[int]]:
        async with asyncgen.AsyncLLM(ours, tokenizer=tokenizer, page_size=7) as llm:
            calls = [llm.generate(row, max_new_tokens=LENGTH, do_sample=False) for row in ROWS]
            return [list(answer.token_ids) for answer in await asyncio.gather(*calls)]

    assert asyncio.run(shared()) == answers
    return ours


def test_every_family_is_in_the_table() -> None:
    assert {*FAMILIES, *STATES} == {*DECLARED} - {"t5", "mt5"}  # which have tests of their own


@pytest.mark.parametrize("family", some(FAMILIES, 40))
def test_a_family_equals_the_reference(
    family: str, tmp_path: Path, tokenizer: asyncgen.Tokenizer
) -> None:
    ours = compare(family, tmp_path, tokenizer)
    assert served_by(ours) == ("our products" if family in NOT_IN_ONE_CALL else "one call")
    if family not in NOT_IN_ONE_CALL:
        for dtype in DTYPES:
            compare_paths(asyncgen.load_model(tmp_path, dtype=dtype).core)
    ours.save_pretrained(tmp_path / "again")
    again = asyncgen.load_model(tmp_path / "again", dtype="float32")
    ids = torch.tensor(ROWS[:1])
    assert torch.equal(again(ids).logits, ours(ids).logits)


def served_by(model: asyncgen.PreTrainedModel) -> str:
    """Name the kernels that compute a model's layers on this machine, as in the table above."""
    if not native.supports(torch.float32):
        pytest.skip("our kernels are not compiled")
    if model.core.runs_in_one_call:
        return "one call"
    products = [each for each in model.core.layers.modules() if isinstance(each, Linear)]
    ours = NativeKernel, NativeStack
    is_ours = all(isinstance(product.ready(), ours) for product in products)
    return "our products" if products and is_ours else "torch"


def compare_paths(core: DecoderLM) -> None:
    """Compare all layers in one call with one by one, to the last bit, for all tokens or some."""
    core.prepare()
    together: Any = core._plan
    assert together.compiled is not None
    assert together.makes_logits is not core.lm_head.adds_bias
    every = [slice(None)] * 3
    some = [slice(2, 3), slice(1, None, 4), slice(0)]
    found: list[list[torch.Tensor]] = []
    for way, wanted in (
        (together, every),
        (together, some),
        (block_by_block(together), every),
    ):
        core._plan = way
        groups = num_groups(core)
        storage = PagedStorage(core.config, 8 * groups, 8, dtype=core.dtype)
        attention: Any = PagedAttention(core.config, storage)
        if core.config.mixing:
            states = PackedStates(StateStorage(core.config, 6, dtype=core.dtype))
            attention = PackedHybrid(attention, states)
        rows = make_rows([26, 1, 9], 8, list(range(8 * groups)), 0, groups)
        for slot, row in enumerate(rows):
            row.ids %= core.vocab_size
            row.slot = slot
        found.append([])
        for count, chosen in zip((1, 9, 16), wanted, strict=True):
            live = [row for row in rows if row.start < len(row.ids)]
            for row in live:
                row.count = min(count, len(row.ids) - row.start)
            found[-1].append(packed_some(core, attention, live, chosen))
            for row in live:
                row.start += row.count
    for together, part, apart, chosen in zip(*found, some, strict=True):
        assert torch.isfinite(apart).all()
        assert torch.equal(together, apart)
        assert torch.equal(part, apart[chosen])


@pytest.mark.soak
@pytest.mark.parametrize(
    ("family", "overrides"),
    [(family, each) for family, several in VARIANTS.items() for each in several],
)
def test_its_switches_do_too(
    family: str, overrides: dict[str, Any], tmp_path: Path, tokenizer: asyncgen.Tokenizer
) -> None:
    compare(family, tmp_path, tokenizer, **overrides)


_SLIDING = {"use_sliding_window": True, "sliding_window": 6}


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("gemma", {"hidden_act": "gelu"}),
        ("smollm3", _SLIDING),
        ("smollm3", {**_SLIDING, "no_rope_layers": [1, 1, 0, 1]}),
        ("qwen2_moe", {**_SLIDING, "max_window_layers": 2}),
        ("qwen2_moe", {**_SLIDING, "max_window_layers": 0}),
        ("gpt_oss", {"rope_parameters": ...}),
        ("exaone4", {"sliding_window": 6, "sliding_window_pattern": 2, "layer_types": ...}),
        ("bloom", {"n_embed": None}),
    ],
)
def test_keys_that_saving_writes_anew_mean_what_they_mean_to_the_reference(
    family: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    theirs = make(family, tmp_path, **keys)
    path = tmp_path / "config.json"
    file = json.loads(path.read_text(encoding="utf-8"))
    for derived in ("layer_types", "rope_parameters", "no_rope_layers", *keys):
        file.pop(derived, None)
    file |= {key: value for key, value in keys.items() if value is not ...}
    path.write_text(json.dumps(file), encoding="utf-8")
    ids = torch.randint(3, 96, (2, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs(ids).logits
    ours = asyncgen.load_model(tmp_path, dtype="float32")
    torch.testing.assert_close(ours(ids).logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("original", [16, 48])
def test_longrope_has_long_factors_beyond_its_original_length(
    original: int, tmp_path: Path
) -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [2.0, 2.2, 2.4, 2.6],
        "partial_rotary_factor": 1.0,
    }
    theirs = make("phi3", tmp_path, rope_parameters=rope, original_max_position_embeddings=original)
    ids = torch.randint(3, 96, (1, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs(ids).logits
    ours = asyncgen.load_model(tmp_path, dtype="float32")
    torch.testing.assert_close(ours(ids).logits, expected, atol=1e-4, rtol=1e-4)


def test_a_pattern_of_letters_beside_the_layers_is_read(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "full_attention"]
    file = {"model_type": "exaone4", "num_hidden_layers": 4, "sliding_window_pattern": "LLG"}
    assert ModelConfig.from_hf(file).layer_types == tuple(kinds)
    assert ModelConfig.from_hf({**file, "layer_types": kinds}).layer_types == tuple(kinds)
    with pytest.raises(asyncgen.ModelLoadError, match="`sliding_window_pattern` is 'LX'"):
        ModelConfig.from_hf({**file, "sliding_window_pattern": "LX"})
