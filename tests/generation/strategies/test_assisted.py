"""Assisted generation gives the tokens of plain decoding, in fewer forward passes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.cache.caches import DynamicCache
from asyncgen.engine.sampling.random_draws import HashDraw
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.strategies.assisted import assisted
from asyncgen.generation.strategies.drafters.candidates import AssistedCandidateGenerator
from asyncgen.generation.strategies.drafters.drafting import Assistance, make_drafter
from asyncgen.generation.strategies.token_by_token import sample
from tests.cases import some
from tests.doubles.engine import greedy_ids
from tests.doubles.models import EOS, PAD, TableCore, TableModel
from tests.generation.strategies.pairs import load_seq2seq, near, pair
from tests.generation.strategies.plans import plan_of
from tests.generation.strategies.test_verify import chi_square

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from asyncgen.generation.strategies.step import Step

PROMPT = [5, 9, 11, 4, 7, 5, 9, 11]
EXTRAS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
    {"min_new_tokens": 5, "eos_token_id": [2, *range(20, 50)]},
    {"bad_words_ids": [[38], [8, 8]], "num_assistant_tokens": 3},
]


def near_table(model: TableModel, amount: float = 0.4) -> TableModel:
    """A table model that often says the same."""
    other = TableModel()
    noise = torch.randn(model.core.table.shape, generator=torch.Generator().manual_seed(9))
    other.core.table = model.core.table + amount * noise
    return other


def helpers(folder: Path, theirs: Any) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Every way to draft, for transformers and for us."""
    other, ours = near(theirs, folder)
    return {
        "assistant": ({"assistant_model": other}, {"assistant_model": ours}),
        "lookup": ({"prompt_lookup_num_tokens": 3},) * 2,
        "early exit": ({"assistant_early_exit": 2},) * 2,
    }


def steps_of(model: TableModel, new_tokens: int, assistant: TableModel, **fields: Any) -> Any:
    plan = plan_of(model, [PROMPT], new_tokens=new_tokens, prefill_chunk=3)
    plan.config = GenerationConfig(pad_token_id=PAD, eos_token_id=EOS, **fields)
    plan.drafter = make_drafter(model, plan, Assistance(assistant), remember=False)
    return assisted(plan)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen3"])
@pytest.mark.parametrize("extra", EXTRAS, ids=lambda extra: next(iter(extra), "plain"))
def test_greedy_tokens_are_those_of_the_reference_and_of_greedy(
    model_type: str, extra: dict[str, Any], tmp_path: Path
) -> None:
    shape = {"sliding_window": 9} if model_type == "mistral" else {}
    theirs, ours = pair(tmp_path / "target", 3, model_type, **shape)
    ids = torch.tensor([PROMPT])
    common = {"max_new_tokens": 20, "return_dict_in_generate": True, "output_scores": True}
    plain = {key: value for key, value in extra.items() if key != "num_assistant_tokens"}
    expected = theirs.generate(ids, **common, **plain)
    for reference, options in helpers(tmp_path / "draft", theirs).values():
        found = ours.generate(ids, **common, **extra, **options)
        assert found.sequences.tolist() == expected.sequences.tolist()
        assert [tuple(row.shape) for row in found.scores] == [(1, 97)] * len(expected.scores)
        for one, other in zip(found.scores, expected.scores, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
        if model_type != "mistral":  # whose sliding cache the reference cannot crop
            again = theirs.generate(ids, max_new_tokens=20, **extra, **reference)
            assert again.tolist() == expected.sequences.tolist()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("way", ["assistant", "early exit"])
def test_sampled_tokens_are_those_of_the_reference(way: str, seed: int, tmp_path: Path) -> None:
    # The reference adjusts the draft's scores twice, so only neutral settings can agree.
    theirs, ours = pair(tmp_path / "target", 1)
    ids = torch.tensor([PROMPT])
    reference, options = helpers(tmp_path / "draft", theirs)[way]
    drafting = {"num_assistant_tokens": 4, "assistant_confidence_threshold": 0.0}
    for model in (theirs, reference.get("assistant_model")):
        if model is not None:
            model.generation_config.update(**drafting)
    common = {"do_sample": True, "max_new_tokens": 12}
    torch.manual_seed(seed)
    expected = theirs.generate(ids, **common, **reference)
    torch.manual_seed(seed)
    found = ours.generate(ids, **common, **drafting, **options)
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("schedule", ["constant", "heuristic", "heuristic_transient"])
def test_as_many_forward_passes_as_the_reference(schedule: str, tmp_path: Path) -> None:
    theirs, ours = pair(tmp_path / "target", 1)
    other, draft = near(theirs, tmp_path / "draft")
    drafting = {
        "num_assistant_tokens": 4,
        "num_assistant_tokens_schedule": schedule,
        "assistant_confidence_threshold": 0.0,
    }
    other.generation_config.update(**drafting)
    counted: Counter[str] = Counter()
    for name, model in (("target", theirs), ("draft", other)):
        model.register_forward_hook(lambda *_, name=name: counted.update([name]))
    for name, core in (("our target", ours.core), ("our draft", draft.core)):
        inner: Any = core
        inner.hidden = _counting(inner.hidden, counted, name)
        inner.decode = _counting(inner.decode, counted, name)
    ids = torch.tensor([PROMPT])
    expected = theirs.generate(ids, max_new_tokens=40, assistant_model=other)
    draft.generation_config.update(**drafting)
    found = ours.generate(ids, max_new_tokens=40, assistant_model=draft)
    assert found.tolist() == expected.tolist()
    assert counted["our target"] == counted["target"]
    assert counted["our draft"] == counted["draft"]
    # The heuristic's next call begins where this one ended.
    assert (draft.generation_config.num_assistant_tokens != 4) == (schedule == "heuristic")


def _counting(call: Callable[..., Any], counted: Counter[str], name: str) -> Callable[..., Any]:
    def counting(*args: Any) -> Any:
        counted[name] += 1
        return call(*args)

    return counting


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 7),
    st.sampled_from(["constant", "heuristic"]),
    st.sampled_from([0.0, 0.3, 0.9]),
)
def test_any_draft_gives_greedy_tokens(
    new_tokens: int, count: int, schedule: str, threshold: float
) -> None:
    model = TableModel()
    steps = steps_of(
        model,
        new_tokens,
        near_table(model),
        num_assistant_tokens=count,
        num_assistant_tokens_schedule=schedule,
        assistant_confidence_threshold=threshold,
    )
    settled = [token for step in steps for token in step.token_ids[0]]
    assert settled == greedy_ids(model, PROMPT, new_tokens)


def test_a_step_for_each_forward_pass_with_all_its_tokens() -> None:
    model = TableModel()
    draft = near_table(model)
    found: list[Step] = []
    passes: list[int] = []
    for step in steps_of(model, 30, draft, num_assistant_tokens=4):
        found.append(step)
        passes.append(model.num_forwards + draft.num_forwards)
    assert max(after - before for before, after in zip([0, *passes], passes, strict=False)) <= 2
    settled = [step for step in found if step.token_ids[0]]
    assert max(len(step.token_ids[0]) for step in settled) > 1
    assert len(settled) < 30
    for step in settled:
        count = len(step.token_ids[0])
        assert step.positions == count
        assert step.logits is not None and len(step.logits) == count
        assert step.scores is not None and len(step.scores) == count
    assert settled[-1].reasons == ["length"]


def test_an_end_in_the_middle_of_a_draft_is_the_end() -> None:
    script = list(range(10, 18))
    for length in range(1, 9):
        model = TableModel(script=script[:length], prompt_length=len(PROMPT))
        draft = TableModel(script=script, prompt_length=len(PROMPT))
        steps = list(steps_of(model, 30, draft, assistant_confidence_threshold=0.0))
        settled = [token for step in steps for token in step.token_ids[0]]
        assert settled == [*script[:length], EOS]
        assert steps[-1].reasons == ["stop"]


@pytest.mark.parametrize("fields", [{"prompt_lookup_num_tokens": 3}, {"num_assistant_tokens": 3}])
def test_closed_at_any_step_leaves_a_prefix(fields: dict[str, Any]) -> None:
    model = TableModel()
    draft = near_table(model)
    whole = [step.token_ids[0] for step in steps_of(model, 20, draft, **fields)]
    for stop in range(len(whole)):
        steps = steps_of(model, 20, draft, **fields)
        assert [next(steps).token_ids[0] for _ in range(stop)] == whole[:stop]
        steps.close()
        assert torch.is_grad_enabled()


def test_lookup_takes_fewer_passes_on_a_prompt_that_is_quoted(tmp_path: Path) -> None:
    _, ours = pair(tmp_path, 1)
    once = ours.generate(torch.tensor([PROMPT]), max_new_tokens=24, eos_token_id=96)
    prompt = torch.cat((once, torch.tensor([PROMPT])), dim=1)
    inner: Any = ours.core
    counted: Counter[str] = Counter()
    script = once[0, len(PROMPT) :].tolist()
    # What it would say is what stands in the prompt, as when it answers from a document.
    bias = [[[*PROMPT, *script[:i], token], 100.0] for i, token in enumerate(script)]
    inner.hidden = _counting(inner.hidden, counted, "passes")
    inner.decode = _counting(inner.decode, counted, "passes")
    options: dict[str, Any] = {"max_new_tokens": 24, "sequence_bias": bias, "eos_token_id": 96}
    plain = ours.generate(prompt, **options)
    passes = counted.pop("passes")
    assert passes == 24
    found = ours.generate(prompt, prompt_lookup_num_tokens=6, **options)
    assert found.tolist() == plain.tolist()
    assert counted["passes"] <= passes / 3


def test_sampled_lookup_in_the_engine_is_plain_sampling_token_for_token() -> None:
    model = TableModel()
    for seed in range(10):
        plan = plan_of(model, [PROMPT], new_tokens=30)
        plan.draw = HashDraw(seed)
        plan.config.do_sample = True
        plain = [step.token_ids[0][0] for step in sample(plan)]
        plan = plan_of(model, [PROMPT], new_tokens=30)
        plan.draw = HashDraw(seed)
        plan.config.do_sample = True
        plan.config.prompt_lookup_num_tokens, plan.config.max_matching_ngram_size = 4, 1
        plan.drafter = make_drafter(model, plan, Assistance(), remember=False)
        assert [token for step in assisted(plan) for token in step.token_ids[0]] == plain


@pytest.mark.gate
@pytest.mark.parametrize("kind", some(["hash", "torch"], 1))
def test_sampled_sequences_have_the_models_distribution(kind: str) -> None:
    size, runs = 4, 700
    model, draft = TableModel(), TableModel()
    for core, seed in ((model.core, 1), (draft.core, 2)):
        core.table = torch.randn(997, size, generator=torch.Generator().manual_seed(seed))
    counts = torch.zeros(size, size)
    torch.manual_seed(0)
    for run in range(runs):
        plan = plan_of(model, [[1, 2]], new_tokens=2)
        plan.config = GenerationConfig(do_sample=True, top_k=0, num_assistant_tokens=3)
        if kind == "hash":
            plan.draw = HashDraw(run)
        plan.drafter = make_drafter(model, plan, Assistance(draft), remember=False)
        first, second = (token for step in assisted(plan) for token in step.token_ids[0])
        counts[first, second] += 1
    assert chi_square(counts, _two_tokens(model.core, size) * runs) < 6


def _two_tokens(core: TableCore, size: int) -> torch.Tensor:
    """Probability of each pair of tokens after ``[1, 2]``."""
    first = core.logits(torch.tensor([2]), torch.tensor([1]))[0].softmax(0)
    second = core.logits(torch.arange(size), torch.full((size,), 2)).softmax(1)
    return first[:, None] * second


def test_a_cache_is_continued_and_left_without_the_last_token(tmp_path: Path) -> None:
    theirs, ours = pair(tmp_path / "target", 2)
    _, draft = near(theirs, tmp_path / "draft")
    cache = DynamicCache()
    ids = torch.tensor([PROMPT])
    first = ours.generate(ids, max_new_tokens=9, past_key_values=cache, assistant_model=draft)
    assert cache.get_seq_length() == first.shape[1] - 1
    longer = torch.cat((first, torch.tensor([[7, 8]])), dim=1)
    found = ours.generate(longer, max_new_tokens=9, past_key_values=cache, assistant_model=draft)
    assert found.tolist() == ours.generate(longer, max_new_tokens=9).tolist()


def test_padding_of_a_single_row_is_hidden_from_both(tmp_path: Path) -> None:
    theirs, ours = pair(tmp_path / "target", 2)
    _, draft = near(theirs, tmp_path / "draft")
    padded = {
        "input_ids": torch.tensor([[0, 0, *PROMPT]]),
        "attention_mask": torch.tensor([[0, 0, *[1] * len(PROMPT)]]),
    }
    expected = ours.generate(torch.tensor([PROMPT]), max_new_tokens=15)[:, len(PROMPT) :]
    for options in ({"assistant_model": draft}, {"assistant_early_exit": 1}):
        found = ours.generate(**padded, max_new_tokens=15, **options)
        assert found[:, len(PROMPT) + 2 :].tolist() == expected.tolist()


@pytest.mark.parametrize("way", ["assistant", "lookup", "early exit"])
def test_an_encoder_decoder_model_is_assisted_as_well(way: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    special = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    sizes = {"vocab_size": 97, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3}
    config = transformers.T5Config(num_heads=4, initializer_factor=2.0, **sizes, **special)
    theirs = transformers.T5ForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path / "target")
    ours = load_seq2seq(tmp_path / "target")
    _, draft = near(theirs, tmp_path / "draft", load=load_seq2seq)
    ids = torch.tensor([[5, 9, 11, 4, 7, 5, 1]])
    expected = theirs.generate(ids, max_new_tokens=20)
    options: dict[str, Any] = {
        "assistant": {"assistant_model": draft},
        "lookup": {"prompt_lookup_num_tokens": 3},
        "early exit": {"assistant_early_exit": 2},
    }[way]
    assert ours.generate(ids, max_new_tokens=20, **options).tolist() == expected.tolist()
    if way == "assistant":  # the draft by hand is what the draft model says by itself
        said = draft.generate(ids, max_new_tokens=6)
        limits = GenerationConfig(max_length=7)
        draft.generation_config.assistant_confidence_threshold = 0.0
        start = ids.new_zeros(1, 1)
        by_hand = AssistedCandidateGenerator(start, draft, limits, {}, inputs_tensor=ids)
        assert by_hand.get_candidates(start)[0].tolist() == said[:, :6].tolist()
