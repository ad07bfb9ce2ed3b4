"""Proofs of a family, one function each: it compares a checkpoint with the reference.

The reference has no contrastive search and no quantiser any more; there a plain formula of the
search or of the rounding over its forward pass is the standard.
"""

from __future__ import annotations

import asyncio
import copy
import re
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import asyncgen
from asyncgen import native
from asyncgen.cache.layer_groups import plan_groups
from asyncgen.cache.paged_storage import PagedStorage, page_bytes
from asyncgen.cache.states import StateStorage, slot_bytes
from asyncgen.engine.kv_cache.block_pool import max_blocks
from asyncgen.errors import InvalidRequestError
from asyncgen.families.plans.state_plan import keeps_states
from asyncgen.models.attention.paged.paged_attention import PagedAttention
from asyncgen.models.mixers.hybrid_context import PackedHybrid
from asyncgen.models.mixers.packed_states import PackedStates
from tests.families.arch.families import make
from tests.models.packing import Row, packed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

LENGTH = 24
ROWS = [[5, 17, 3, 44, 9, 21, 80], [7, 8], [11, 64, 2, 90, 33, 12, 6, 28, 71, 15, 50]]
PAGE = 4
GREEDY: dict[str, Any] = {
    "do_sample": False,
    "eos_token_id": None,
    "pad_token_id": 0,
    "use_cache": True,  # which the files of MPT deny
}
SHARED: dict[str, Any] = {"do_sample": False, "use_cache": True}
OWN_CACHES = {"minimax", "recurrent_gemma"}
"""Families whose states the reference keeps in a way of its own, and mixes up with beams."""
CACHES = ("dynamic", "offloaded", "static", "offloaded_static", "hybrid", "sliding_window")


@dataclass
class Pair:
    """A checkpoint, as the reference and as we compute it, both at float32.

    Attributes:
        theirs: The reference's model.
        ours: Ours, loaded from `folder`.
        folder: Where the checkpoint lies.
    """

    theirs: Any
    ours: Any
    folder: Path

    @property
    def windows(self) -> list[int | None]:
        """The window of each layer."""
        config = self.ours.core.config
        return [config.window(layer) for layer in range(config.num_hidden_layers)]


def make_pair(family: str, folder: Path, **overrides: Any) -> Pair:
    """Make a checkpoint of a family, and load it."""
    theirs = make(family, folder, **overrides)
    return Pair(theirs, asyncgen.load_model(folder, dtype="float32"), folder)


def padded() -> tuple[Tensor, Tensor]:
    """The rows as one batch, padded on the left, and their mask; both ``[3, S]``."""
    widest = max(map(len, ROWS))
    ids = torch.tensor([[0] * (widest - len(row)) + row for row in ROWS])
    mask = torch.tensor([[0] * (widest - len(row)) + [1] * len(row) for row in ROWS])
    return ids, mask


@torch.no_grad()
def assert_greedy(theirs: Any, row: list[int], answer: list[int]) -> None:
    """Check that the reference gives the same tokens; one row, without a cache."""
    best = theirs(torch.tensor([row + answer])).logits[0].argmax(dim=-1).tolist()
    assert best[len(row) - 1 : -1] == answer


def preemption(pair: Pair, tokenizer: asyncgen.Tokenizer) -> None:
    """Rows beside each other lose their pages and get them again: the pool holds the longest."""
    rows = [row + ending for row in ROWS for ending in ([], [4])]
    windows = plan_groups(pair.ours.core.config).windows
    pages = max_blocks(windows, PAGE, max(map(len, rows)) + LENGTH, chunk=PAGE)

    async def run() -> list[list[int]]:
        if keeps_states(pair.ours.core.config):
            return await _seats_change_hands(pair, tokenizer, rows)
        async with _engine(pair, tokenizer, pages) as llm:
            for _ in range(5):  # a machine that stands still may let one text end before the next
                calls = [llm.generate(row, max_new_tokens=LENGTH, **SHARED) for row in rows]
                answers = [list(found.token_ids) for found in await asyncio.gather(*calls)]
                if llm.metrics().preemptions > 0:
                    return answers
            raise AssertionError("no text lost its pages")

    for row, answer in zip(rows, asyncio.run(run()), strict=True):
        assert len(answer) == LENGTH
        assert_greedy(pair.theirs, row, answer)


async def _seats_change_hands(
    pair: Pair, tokenizer: asyncgen.Tokenizer, rows: list[list[int]]
) -> list[list[int]]:
    """Answers to rows of which the first have all seats until another client comes."""
    half = len(rows) // 2
    options = {"max_new_tokens": LENGTH, **SHARED}
    async with asyncgen.AsyncLLM(
        pair.ours, tokenizer=tokenizer, page_size=PAGE, prefill_chunk_size=PAGE, max_running=half
    ) as llm:
        for _ in range(5):
            first = [
                asyncio.ensure_future(
                    llm.generate(row, **{**options, "max_new_tokens": 2 * LENGTH})
                )
                for row in rows[:half]
            ]
            for _ in range(1000):
                if llm.metrics().requests_running == half:
                    break
                await asyncio.sleep(0.001)
            later = [llm.generate(row, client="another", **options) for row in rows[half:]]
            answers = await asyncio.gather(*first, *later)
            if llm.metrics().preemptions > 0:
                return [list(answer.token_ids)[:LENGTH] for answer in answers]
        raise AssertionError("no text lost its seat")


def prefixes(pair: Pair, tokenizer: asyncgen.Tokenizer) -> None:
    """A second text begins as the first one and its answer did: what is known is not computed."""

    async def run() -> tuple[list[int], asyncgen.Completion]:
        async with _engine(pair, tokenizer, 64) as llm:
            first = await llm.generate(ROWS[2], max_new_tokens=LENGTH, **SHARED)
            begun = ROWS[2] + list(first.token_ids)[:18]
            return begun, await llm.generate([*begun, 4], max_new_tokens=10, **SHARED)

    begun, second = asyncio.run(run())
    assert second.usage.cached_tokens > len(begun) - 2 * PAGE
    assert_greedy(pair.theirs, [*begun, 4], list(second.token_ids))


def _engine(pair: Pair, tokenizer: asyncgen.Tokenizer, pages: int) -> asyncgen.AsyncLLM:
    config = pair.ours.core.config
    memory = pages * page_bytes(config, PAGE, torch.float32)
    if keeps_states(config):  # half of it, for two states of a row and those that are kept
        memory += max(memory, 100 * slot_bytes(config, torch.float32))
    return asyncgen.AsyncLLM(
        pair.ours,
        tokenizer=tokenizer,
        page_size=PAGE,
        prefill_chunk_size=PAGE,
        snapshot_pages=1,
        kv_cache_memory=memory,
    )


def beams(pair: Pair, _: object) -> None:
    """Three beams of each row of a padded batch: the reference's tokens and scores, row by row."""
    ids, mask = padded()
    options: dict[str, Any] = {
        "num_beams": 3,
        "max_new_tokens": 12,
        "return_dict_in_generate": True,
        "output_scores": True,
        **GREEDY,
    }
    found = pair.ours.generate(ids, attention_mask=mask, **options)
    for number, row in enumerate(ROWS):
        options["use_cache"] = has_true_cache(pair.ours.core)
        expected = pair.theirs.generate(torch.tensor([row]), **options)
        answer = found.sequences[number, ids.shape[1] :]
        assert answer.tolist() == expected.sequences[0, len(row) :].tolist()
        score = found.sequences_scores[number : number + 1]
        torch.testing.assert_close(score, expected.sequences_scores, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def searched(theirs: Any, row: list[int], *, alpha: float, top_k: int, new: int) -> list[int]:
    """Contrastive search by its formula over the reference's forward pass, without a cache.

    Su and others, "A Contrastive Framework for Neural Text Generation" (2022), equation 5.
    """
    # Llama 4's whole model calls itself its base.
    base = theirs.model if theirs.base_model is theirs else theirs.base_model
    text = list(row)
    for _ in range(new):
        chances = theirs(torch.tensor([text])).logits[0, -1].softmax(dim=-1)
        likely, candidates = chances.topk(top_k)
        tried = torch.tensor([[*text, candidate] for candidate in candidates.tolist()])
        states = base(tried).last_hidden_state
        states = torch.nn.functional.normalize(states, dim=-1)
        likeness = (states[:, :-1] @ states[:, -1:].mT).amax(dim=(1, 2))
        best = ((1 - alpha) * likely - alpha * likeness).argmax()
        text.append(int(candidates[best]))
    return text[len(row) :]


def contrastive_search(pair: Pair, _: object) -> None:
    """Rows of a padded batch find what the formula finds for each; with states it is refused."""
    if keeps_states(pair.ours.core.config):
        _takes_nothing_back(pair, penalty_alpha=0.6, top_k=4)
        return
    ids, mask = padded()
    found = pair.ours.generate(
        ids, attention_mask=mask, penalty_alpha=0.6, top_k=4, max_new_tokens=10, **GREEDY
    )
    for row, answer in zip(ROWS, found[:, ids.shape[1] :].tolist(), strict=True):
        assert answer == searched(pair.theirs, row, alpha=0.6, top_k=4, new=10)


def caches(pair: Pair, _: object) -> None:
    """Every cache that keeps what it is given: the same tokens; one that cannot be says so."""
    ids, mask = padded()
    options = {"attention_mask": mask, "max_new_tokens": LENGTH, **GREEDY}
    for number, name in enumerate(CACHES):
        if name == "sliding_window" and None in pair.windows:
            _refused(pair, name)
            continue
        found = pair.ours.generate(ids, cache_implementation=name, **options)
        if number == 0:
            answers = found
            for row, answer in zip(ROWS, found[:, ids.shape[1] :].tolist(), strict=True):
                assert_greedy(pair.theirs, row, answer)
        assert torch.equal(found, answers), name


def _refused(pair: Pair, name: str) -> None:
    try:
        pair.ours.generate(torch.tensor(ROWS[:1]), cache_implementation=name, max_new_tokens=2)
    except InvalidRequestError as error:
        assert error.parameter == "cache_implementation"
    else:
        raise AssertionError(f"{name} was to be refused")


def _takes_nothing_back(pair: Pair, **options: Any) -> None:
    try:
        pair.ours.generate(torch.tensor(ROWS[:1]), max_new_tokens=4, **options, **GREEDY)
    except InvalidRequestError as error:
        assert error.parameter in options
    else:
        raise AssertionError(f"{options} was to be refused")


def quantised_cache(pair: Pair, _: object) -> None:
    """Keys and values in 4 bits: the logits of the reference's cache with the same rounding.

    Each head's numbers of a position are a group, so that the order of a head's numbers, which
    may be ours, plays no part. Keys and values that are made of latent ones are in a shape of ours,
    so that other numbers are rounded together than the reference's. Beside states in the same
    layer the reference rounds none, and in families with caches of their own it takes no other.
    """
    if not is_compared(pair.ours.core):
        return
    if any(window is not None for window in pair.windows):
        _refused(pair, "quantized")
        return
    size = pair.ours.core.config.head_dim
    settings = {"backend": "quanto", "nbits": 4, "q_group_size": size, "residual_length": 5}
    text = ROWS[2]
    found = pair.ours.generate(
        torch.tensor([text]),
        cache_implementation="quantized",
        cache_config=settings,
        return_dict_in_generate=True,
        output_logits=True,
        max_new_tokens=14,
        **GREEDY,
    )
    answer = found.sequences[0, len(text) :].tolist()
    expected = rounded(pair.theirs, text, answer, residual_length=5)
    # A number that lies between two levels may come to lie on the other side of half a level.
    torch.testing.assert_close(torch.cat(found.logits), expected, atol=2e-3, rtol=2e-3)


@torch.no_grad()
def rounded(theirs: Any, text: list[int], answer: list[int], *, residual_length: int) -> Tensor:
    """Logits ``[S, V]`` along an answer, of the reference with a cache that rounds to 4 bits."""
    from transformers.cache_utils import DynamicCache, DynamicLayer, QuantizedLayer

    class Rounded(QuantizedLayer):  # type: ignore[misc]
        """Levels between the least and the greatest number of a head; kept as numbers."""

        def _quantize(self, tensor: Tensor, axis: int) -> Tensor:
            least, greatest = tensor.aminmax(dim=-1, keepdim=True)
            scale = (greatest - least) / 15
            return ((tensor - least) / scale).round() * scale + least

        def _dequantize(self, q_tensor: Tensor) -> Tensor:
            return q_tensor

    cache = DynamicCache(config=theirs.config)
    for number, layer in enumerate(cache.layers):
        if isinstance(layer, DynamicLayer):  # a state is kept as it is
            cache.layers[number] = Rounded(residual_length=residual_length)
    steps = [text, *([token] for token in answer[:-1])]
    found, length = [], 0
    for ids in steps:
        length += len(ids)
        mask = torch.ones(1, length, dtype=torch.long)
        places = torch.arange(length - len(ids), length)[None]  # which Bamba does not tell itself
        out = theirs(
            torch.tensor([ids]), attention_mask=mask, position_ids=places, past_key_values=cache
        )
        found.append(out.logits[0, -1])
    return torch.stack(found)


def is_compared(core: Any) -> bool:
    """Return whether the reference rounds keys and values at the same place."""
    is_beside = "hybrid" in core.config.layer_types
    is_wide = core.config.layer_plans[0].is_differential  # with pairs of values
    return not (is_latent(core) or is_beside or is_wide) and has_true_cache(core)


def has_true_cache(core: Any) -> bool:
    """Return whether the reference gives the same with its cache as without.

    With Mamba 2 beside attention its single steps ignore the longest time step.
    """
    plans = [plan.mixer for plan in core.config.layer_plans]
    is_limited = any(getattr(plan, "most_step", inf) < inf for plan in plans)
    return core.config.model_type not in OWN_CACHES and not is_limited


def is_latent(core: Any) -> bool:
    """Return whether keys and values are made of latent rows, by a key of the file."""
    return "kv_lora_rank" in core.config.raw


def drafts(pair: Pair, _: object) -> None:
    """Drafts of the prompt's own words, and of the model itself, change no token."""
    row = ROWS[2] + ROWS[2][:6]
    options = {"max_new_tokens": LENGTH, **GREEDY}
    looked_up = pair.ours.generate(torch.tensor([row]), prompt_lookup_num_tokens=3, **options)
    assert_greedy(pair.theirs, row, looked_up[0, len(row) :].tolist())
    assisted = pair.ours.generate(torch.tensor([row]), assistant_model=pair.ours, **options)
    assert torch.equal(assisted, looked_up)


@torch.no_grad()
def bfloat16(pair: Pair, _: object) -> None:
    """Packed rows at bfloat16 are as near to float32 as its roundings let them be.

    Weights are numbers of bfloat16 here, so that computing alone rounds. A rounding is off by
    2 ** -9 at most. A block has twelve on a token's way (two norms, heads and their turning,
    scores, values, three products, a gate, two sums), embeddings and head four; they are
    independent, so they add up as the steps of a random walk do, to
    2 ** -9 * sqrt(12 * layers + 4) of the logits' length. That holds for half of the tokens.
    Where experts are chosen, a choice may fall otherwise, and what follows sees it: a quarter of
    the tokens stays within twice as much. A model whose blocks round more often may be as far off
    as the reference is at bfloat16, and a quarter more.

    A model that is moved to bfloat16 computes what one does that is loaded so.
    """
    theirs = copy.deepcopy(pair.theirs)
    for weight in theirs.state_dict().values():
        weight.copy_(weight.bfloat16())
    theirs.save_pretrained(pair.folder / "rounded")
    loaded = asyncgen.load_model(pair.folder / "rounded", dtype="bfloat16")
    core = loaded.core
    ids = torch.randint(3, 96, (24, 40), generator=torch.Generator().manual_seed(1))
    exact = theirs(ids).logits
    rounded = theirs.to(torch.bfloat16)(ids).logits
    off = _distances(torch.stack(packed_logits(core, ids)), exact)
    moved = asyncgen.load_model(pair.folder / "rounded").to(torch.bfloat16)
    assert torch.equal(moved(ids[:2]).logits, loaded(ids[:2]).logits)
    # Torch's operators round about twice as often: each step of a norm or of a gate.
    of_layer = 12 if native.supports(torch.bfloat16) else 24
    bound = 2**-9 * (of_layer * core.config.num_hidden_layers + 4) ** 0.5
    if any(plan.experts for plan in core.config.layer_plans):
        assert off.quantile(0.25) <= 2 * bound
    else:
        assert off.median() <= max(bound, 1.25 * float(_distances(rounded, exact).median()))


def packed_logits(core: Any, ids: Tensor) -> list[Tensor]:
    """Logits ``[S, V]`` of each row of ``[B, S]``, packed into one step over pages."""
    core.prepare()
    groups, pages, each = len(plan_groups(core.config).groups), count(), -(-ids.shape[1] // PAGE)
    rows: list[Row] = []
    for row in ids:
        first, *more = ([next(pages) for _ in range(each)] for _ in range(groups))
        rows.append(Row(row, first, more=more, count=len(row), slot=len(rows)))
    storage = PagedStorage(core.config, next(pages), PAGE, dtype=core.dtype)
    context: Any = PagedAttention(core.config, storage)
    if keeps_states(core.config):
        states = PackedStates(StateStorage(core.config, 2 * len(rows), dtype=core.dtype))
        context = PackedHybrid(context, states)
    return packed(core, context, rows)


def _distances(found: Tensor, exact: Tensor) -> Tensor:
    """Compute the errors of each token's logits, over their length; ``[B * S]``."""
    lengths = exact.square().sum(-1).sqrt()
    return ((found.float() - exact).square().sum(-1).sqrt() / lengths).flatten()


@torch.no_grad()
def files(pair: Pair, _: object) -> None:
    """Its files in many parts are read; ours, in many parts too, are the reference's again."""
    ids = torch.tensor(ROWS[:1])
    expected = pair.theirs(ids).logits
    parts, back = pair.folder / "parts", pair.folder / "back"
    pair.theirs.save_pretrained(parts, max_shard_size="20KB")
    assert len([*parts.glob("*.safetensors")]) > 1
    again = asyncgen.load_model(parts, dtype="float32")
    assert torch.equal(again(ids).logits, pair.ours(ids).logits)
    again.save_pretrained(back, max_shard_size="20KB")
    assert len([*back.glob("*.safetensors")]) > 1
    theirs, told = type(pair.theirs).from_pretrained(
        back, dtype=torch.float32, output_loading_info=True
    )
    ignored = again.core.ignored_weights()  # which follow from the configuration
    missing = [key for key in told["missing_keys"] if not _is_one_of(key, ignored)]
    assert not (missing or told["unexpected_keys"] or told["mismatched_keys"])
    found = theirs.state_dict()
    for name, weight in pair.theirs.state_dict().items():
        assert _is_one_of(name, ignored) or torch.equal(found[name], weight), name
    # A product sums in an order that depends on how far from a line of 64 bytes its weight begins,
    # and files leave that to chance: copies begin at a line, as what was drawn does.
    for parameter in theirs.parameters():
        parameter.data = parameter.data.clone()
    assert torch.equal(theirs.eval()(ids).logits, expected)


def _is_one_of(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a weight's name matches one of several patterns."""
    return any(re.search(each, name) for each in patterns)


PROOFS: dict[str, Callable[[Pair, Any], None]] = {
    "preemption": preemption,
    "prefixes": prefixes,
    "beams": beams,
    "contrastive search": contrastive_search,
    "caches": caches,
    "quantised cache": quantised_cache,
    "drafts": drafts,
    "bfloat16": bfloat16,
    "files": files,
}
"""By their names in the table of the documentation."""

CHEAP = ("preemption", "bfloat16", "files")
"""Those of which every family has one in plain tests."""
