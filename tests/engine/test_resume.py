"""Behind its first tokens, a request goes on as if it had generated them: the law, by example."""

from __future__ import annotations

import math
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from asyncgen.cache.paged_storage import page_bytes
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.own_parameters import SAMPLERS
from asyncgen.generation.config.parameters import PARAMETERS
from asyncgen.native import supports
from asyncgen.reference.pretrained_model import PreTrainedModel
from tests.cases import for_each
from tests.doubles.models import EOS, TableModel
from tests.engine.batches import Bench
from tests.models.build import random_config, random_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from asyncgen.types import TokenEvent

MODEL = TableModel(eos_bias=0.5)

VALUES: dict[str, list[Any]] = {
    "temperature": [0.7, 1.3],
    "top_k": [5, 20],
    "top_p": [0.8],
    "min_p": [0.05],
    "top_h": [0.6],
    "typical_p": [0.9],
    "epsilon_cutoff": [0.001],
    "eta_cutoff": [0.001],
    "repetition_penalty": [1.3],
    "encoder_repetition_penalty": [1.2],
    "presence_penalty": [0.8],
    "frequency_penalty": [0.7, -0.5],
    "repeat_penalty": [1.3],
    "repeat_last_n": [3, 8, -1],
    "xtc_probability": [0.5, 1.0],
    "xtc_threshold": [0.01],
    "dry_multiplier": [2.0],
    "dry_base": [1.2],
    "dry_allowed_length": [1],
    "dry_penalty_last_n": [6],
    "dry_sequence_breakers": [[], ["a", "bc"]],
    "top_n_sigma": [1.5],
    "dynatemp_range": [0.5],
    "dynatemp_exponent": [2.0],
    "mirostat": [1, 2],
    "mirostat_tau": [2.0],
    "mirostat_eta": [0.5],
    "no_repeat_ngram_size": [1, 2, 3],
    "encoder_no_repeat_ngram_size": [2],
    "bad_words_ids": [[[5], [6, 7]]],
    "sequence_bias": [[[[9], 3.0], [[9, 9], -4.0]]],
    "suppress_tokens": [[1, 2, 3]],
    "begin_suppress_tokens": [[60, 61, 62, 63]],
    "forced_bos_token_id": [65],
    "forced_eos_token_id": [EOS],
    "exponential_decay_length_penalty": [(3, 1.2), (10, 1.5)],
    "min_new_tokens": [4],
    "min_length": [12],
    "max_new_tokens": [12],
    "max_length": [30],
    "renormalize_logits": [True],
    "remove_invalid_values": [True],
    "watermarking_config": [
        {"bias": 2.0},
        {"bias": 2.0, "seeding_scheme": "selfhash"},
        {"ngram_len": 3, "keys": [654, 400, 836]},
        {"ngram_len": 5, "keys": [9, 40], "context_history_size": 8},
    ],
    "stop": [["ab", "e"], "\ufffd\ufffd\ufffd\ufffd"],
    "stop_strings": [["ab", "e"]],
    "eos_token_id": [[EOS, 70, 71]],
    "stop_token_ids": [[72, 73]],
    "pad_token_id": [0],
    "bos_token_id": [1],
    "logprobs": [True],
    "top_logprobs": [3],
    "prompt_logprobs": [0, 2],
    "skip_special_tokens": [False],
    "prefix_allowed_tokens_fn": [lambda _, ids: range(len(ids) % 7, 250)],
    "priority": [2],
    "client": ["somebody"],
    "cache_salt": ["salt"],
    "use_cache": [True],
    "context_overflow": ["rolling"],
    "truncation": ["disabled"],
    "max_time": [1e6],
    "prefill_chunk_size": [1, 3],
    "num_beams": [1],
    "token_healing": [False],
    "n": [2, 3],
    "num_return_sequences": [2],
}
"""Values of every parameter that the shared batch serves."""

APART: dict[str, str] = {
    "seed do_sample generated_ids generation_config trust_remote_code": "of every case here",
    "fingerprint": "changes no token",
    "logits_processor stopping_criteria": "the user's own: a test of its own",
    "guidance_scale negative_prompt_ids negative_prompt_attention_mask cache_implementation "
    "max_cache_len decoder_start_token_id": "beside the batch: a test of its own",
    "early_stopping length_penalty num_beam_groups diversity_penalty constraints force_words_ids "
    "penalty_alpha low_memory dola_layers prompt_lookup_num_tokens max_matching_ngram_size "
    "num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold "
    "assistant_early_exit assistant_lookbehind target_lookbehind assistant_model "
    "assistant_tokenizer custom_generate recipe": "of strategies that cannot be continued",
    "synced_gpus is_assistant disable_compile compile_config cache_config "
    "continuous_batching_config": "change nothing here",
    "chat_template_kwargs tools tool_choice parallel_tool_calls separate_reasoning "
    "enable_thinking reasoning_effort max_reasoning_tokens continue_final_message "
    "thinking_token_budget thinking_budget thinking_budget_tokens reasoning_budget "
    "reasoning_budget_tokens": "for messages",
    "json_schema json_object response_model regex grammar choice": "need a tokenizer with a file: "
    "a test of their own",
}

_WAYS = ({"do_sample": False}, {"do_sample": True}, {"do_sample": True, "temperature": 1.6})
_PAIRS = (
    {"max_new_tokens", "max_length"},
    {"min_new_tokens", "min_length"},
    {"repeat_penalty", "repetition_penalty"},
    {"context_overflow", "truncation"},
)
_SWITCHES = {"repeat_last_n": "repetition_penalty"} | {
    each.name: each.needs for each in SAMPLERS if each.needs not in (None, "do_sample")
}
_NOT_WITH_MIROSTAT = {"n", "num_return_sequences", "prompt_logprobs"} | {
    each.name
    for each in PARAMETERS
    if each.needs == "do_sample" and each.name not in ("mirostat", "temperature")
}


def test_every_parameter_of_the_batch_is_among_the_cases() -> None:
    apart = {name for names in APART for name in names.split()}
    served = {each.name for each in PARAMETERS if not each.elsewhere and not each.awaits}
    assert served - apart == VALUES.keys()


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """Parameters of a request."""
    names = draw(st.sets(st.sampled_from(sorted(VALUES)), max_size=5))
    given: dict[str, Any] = dict(draw(st.sampled_from(_WAYS)))
    if not given["do_sample"]:
        names -= {each.name for each in PARAMETERS if each.needs == "do_sample"}
    if "mirostat" in names:
        names -= _NOT_WITH_MIROSTAT
    for pair in _PAIRS:
        if pair <= names:
            names.remove(min(pair))
    names -= {name for name, switch in _SWITCHES.items() if switch not in names}
    if {"n", "num_return_sequences"} <= names:
        names.remove("n")
    rows = names & {"n", "num_return_sequences"}
    if rows and (not given["do_sample"] or "watermarking_config" in names):
        names -= rows  # several equal ones; or beside the batch
    if rows:
        names.discard("prefix_allowed_tokens_fn")
    if "logprobs" not in names:
        names.discard("top_logprobs")
    if not names & {"max_new_tokens", "max_length"}:
        given["max_new_tokens"] = 20
    given |= {name: draw(st.sampled_from(VALUES[name])) for name in sorted(names)}
    return given | {"seed": draw(st.integers(0, 1000))}


def answer_of(
    bench: Bench, prompt: list[int], given: Mapping[str, Any], *, beside: Sequence[Any] = ()
) -> list[TokenEvent]:
    """The events of a request, with others beside it."""
    for other, own in beside:
        bench.add(other, **own)
    request, sink = bench.add(prompt, **given)
    assert request.alone is None, request.alone
    bench.run()
    bench.require_empty()
    return sink.events


def told(events: Sequence[TokenEvent], index: int, given: int = 0) -> tuple[Any, ...]:
    """Return the ids, the text and the rest that a reader got after the first tokens."""
    ids: list[int] = []
    text, ending = "", None
    logprobs: list[Any] = []
    for event in events:
        if event.index != index:
            continue
        behind = len(ids) >= given
        ids += event.token_ids
        if behind:
            text += event.text
            logprobs += event.logprobs or ()
        if event.finish_reason is not None:
            ending = event.finish_reason, event.stop_reason
    return ids[given:], text, logprobs, ending


def ids_of(events: Sequence[TokenEvent], index: int) -> list[int]:
    """All tokens of a sample."""
    return [token for each in events if each.index == index for token in each.token_ids]


def check(
    model: Any,
    prompt: list[int],
    given: dict[str, Any],
    rng: random.Random,
    times: int = 1,
    **options: Any,
) -> None:
    """Cut a request at random places and compare, alone and in company with little memory."""
    whole = answer_of(Bench(model, pages=256, **options), prompt, given)
    rows = given.get("n") or given.get("num_return_sequences") or 1
    lists = [ids_of(whole, index) for index in range(rows)]
    for _ in range(times):
        cuts = [rng.randint(0, len(ids)) for ids in lists]
        firsts = [ids[:cut] for ids, cut in zip(lists, cuts, strict=True)]
        page_size = rng.choice([2, 4])
        bench = Bench(
            model,
            pages=rng.choice([36, 160]) // page_size,
            page_size=page_size,
            max_running=rng.choice([2, 8]),
            prefill_chunk_size=rng.choice([1, 3, 100]),
            **options,
        )
        # Some begin as it does, and one has its very beginning: pages to be found.
        beside = [
            (prompt + firsts[0][: rng.randint(0, cuts[0])], {"max_new_tokens": 6, "seed": 1})
            for _ in range(rng.randint(0, 3))
        ]
        more = {"generated_ids": firsts[0] if rows == 1 and rng.random() < 0.5 else firsts}
        rest = answer_of(bench, prompt, given | more, beside=beside)
        for index, cut in enumerate(cuts):
            assert told(rest, index) == told(whole, index, cut), (prompt, given, cuts)
        usage, same = rest[-1].usage, whole[-1].usage
        assert usage is not None and same is not None
        assert usage.completion_tokens == same.completion_tokens
        assert usage.prompt_tokens == same.prompt_tokens


PROMPTS = st.lists(st.integers(0, 255), min_size=1, max_size=9)


@settings(max_examples=20, deadline=None)
@drawn(PROMPTS, requests(), st.integers(0, 2**32))
def test_first_tokens_and_rest_are_the_whole(
    prompt: list[int], given: dict[str, Any], seed: int
) -> None:
    check(MODEL, prompt, given, random.Random(seed))


@pytest.mark.soak
@settings(max_examples=1500, deadline=None)
@drawn(PROMPTS, requests(), st.integers(0, 2**32))
@pytest.mark.timeout(1800)
def test_1500_requests_are_cut(prompt: list[int], given: dict[str, Any], seed: int) -> None:
    check(MODEL, prompt, given, random.Random(seed), times=2)


@for_each("name", ["gpt2", "llama", "mistral", "qwen3"])
@for_each("dtype", [torch.float32, torch.bfloat16])
def test_models_with_real_arithmetic_go_on_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    if not supports(dtype):
        pytest.skip("numbers depend on the company of a row with torch's kernels")
    model = PreTrainedModel(random_model(random_config(name), dtype=dtype))
    rng, size = random.Random(name), model.core.config.vocab_size
    options = {"position_bytes": page_bytes(model.core.config, 1, model.dtype)}
    for case in ({}, {"temperature": 0.9, "top_k": 20, "logprobs": True}, {"n": 2, "top_p": 0.9}):
        prompt = [rng.randrange(3, size) for _ in range(rng.randint(2, 9))]
        given = {"do_sample": bool(case), "max_new_tokens": 12, "seed": 5} | case
        check(model, prompt, given, rng, **options)


@for_each(
    "case",
    [
        {"mirostat": 1, "mirostat_tau": 3.0},
        {"mirostat": 2, "mirostat_tau": 2.0, "mirostat_eta": 0.5, "frequency_penalty": 0.5},
        {"xtc_probability": 0.5, "xtc_threshold": 0.01, "temperature": 1.5},
        {"dry_multiplier": 3.0, "dry_allowed_length": 1, "repeat_last_n": 4, "repeat_penalty": 1.5},
    ],
    ids=lambda case: "-".join(case),
)
def test_samplers_with_a_memory_go_on_at_every_cut(case: dict[str, Any]) -> None:
    prompt, given = [7, 8, 9], {"do_sample": True, "seed": 3, "max_new_tokens": 14} | case
    whole = ids_of(answer_of(Bench(MODEL, pages=256), prompt, given), 0)
    for cut in range(len(whole)):
        bench = Bench(MODEL, pages=16, page_size=2, max_running=3, prefill_chunk_size=3)
        beside = [([1, 2, number], {"max_new_tokens": 9, "seed": 1}) for number in range(3)]
        more = given | {"generated_ids": whole[:cut]}
        rest = answer_of(bench, prompt, more, beside=beside)
        assert ids_of(rest, 0) == whole[cut:], cut


def test_what_a_resumed_mirostat_cannot_do_is_refused_by_name() -> None:
    given = {"mirostat": 2, "max_new_tokens": 9}
    for more in (
        {"generated_ids": [[1], [2]], "n": 2},
        {"generated_ids": [1], "prompt_logprobs": 1},
        {"generated_ids": [1], "use_cache": False},
    ):
        with pytest.raises(InvalidRequestError, match="`mirostat` is 2") as caught:
            Bench(MODEL).add([5], **given, **more)
        assert caught.value.parameter == "mirostat"


APART_CASES: list[dict[str, Any]] = [
    {"guidance_scale": 1.7},
    {"guidance_scale": 1.7, "negative_prompt_ids": [20, 21, 22], "use_cache": False},
    {"guidance_scale": 0.5, "n": 3},
    {"cache_implementation": "static", "max_cache_len": 64, "repetition_penalty": 1.2},
    {"use_cache": False, "n": 2, "frequency_penalty": 0.5},
    {"n": 2, "watermarking_config": {"ngram_len": 3, "keys": [654, 400]}, "top_k": 30},
]


@for_each("case", APART_CASES, ids=lambda case: "-".join(case))
def test_requests_beside_the_batch_go_on_likewise(case: dict[str, Any]) -> None:
    model = PreTrainedModel(random_model(random_config("llama", vocab_size=260)))
    given = {"do_sample": True, "seed": 7, "max_new_tokens": 12} | case

    def run(**more: Any) -> list[TokenEvent]:
        options = {"position_bytes": page_bytes(model.core.config, 1, model.dtype)}
        bench = Bench(model, pages=256, **options)
        request, sink = bench.add([5, 6, 7], **given, **more)
        assert request.alone is not None
        bench.run()
        return sink.events

    whole = run()
    lists = [ids_of(whole, index) for index in range(case.get("n", 1))]
    for cut in (0, 1, 5, 11, 12):
        rest = run(generated_ids=[ids[:cut] for ids in lists])
        for index, ids in enumerate(lists):
            assert told(rest, index) == told(whole, index, min(cut, len(ids))), (cut, index)
        assert rest[-1].usage == whole[-1].usage


# The seam.


class Countdown:
    """A hook that does something at a certain forward pass."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.then: Callable[[], object] = bool

    def __call__(self, *_: object) -> None:
        self.count -= 1
        if not self.count:
            self.then()


def run(prompt: Any = "abc", **given: Any) -> list[TokenEvent]:
    """The events of a request on a model that says a text."""
    bench = Bench(TableModel(script="caf\u00e9 au lait", prompt_length=3))
    _, sink = bench.add(prompt, **given)
    bench.run()
    bench.require_empty()
    return sink.events


def test_held_back_text_follows_the_resumed_part() -> None:
    ids = list("caf\u00e9 au lait".encode())
    assert told(run(generated_ids=ids[:4]), 0)[1] == "\u00e9 au lait"  # in mid-character
    assert told(run(generated_ids=ids[:9], stop=["laid"]), 0)[1] == " lait"[1:]
    rest = run(generated_ids=ids[:11], stop=["lait"])  # "lai" was held back; it must not show
    assert told(rest, 0)[1:] == ("", [], ("stop", "lait"))


def test_resuming_an_ended_sequence_computes_nothing() -> None:
    ids = list("caf\u00e9 au lait".encode())
    cases: list[tuple[dict[str, Any], tuple[str, int | str | None]]] = [
        ({"generated_ids": [*ids, EOS]}, ("stop", EOS)),
        ({"generated_ids": ids[:4], "max_new_tokens": 4}, ("length", None)),
        ({"generated_ids": ids[:3], "stop": "af"}, ("stop", "af")),
        ({"generated_ids": ids[:3], "stop_strings": "af"}, ("stop", None)),
        ({"generated_ids": ids[:2], "max_length": 5}, ("length", None)),
    ]
    for given, ending in cases:
        (event,) = run(**given)
        assert (event.text, event.token_ids) == ("", ())
        assert (event.finish_reason, event.stop_reason) == ending
        assert event.usage is not None and event.usage.completion_tokens == len(
            given["generated_ids"]
        )


@pytest.mark.parametrize("reason", ["cancelled", "time"])
def test_text_flushed_on_interruption_is_separate_from_id_text(reason: str) -> None:
    given: dict[str, Any] = {"stop": ["caf\u00e9 noir"]}
    whole = run(**given)
    for count in range(1, 14):
        hook = Countdown(count)
        bench = Bench(TableModel(script="caf\u00e9 au lait", prompt_length=3, hook=hook))
        request, sink = bench.add("abc", **given)
        over = partial(setattr, request.stop_checks, "_deadline", -math.inf)
        hook.then = over if reason == "time" else request.cancel.set
        bench.run()
        bench.require_empty()
        assert sink.events[-1].finish_reason == reason
        ids = ids_of(sink.events, 0)
        first = "".join(event.text for event in sink.events if event.token_ids)
        rest = told(run(generated_ids=ids, **given), 0)
        assert first + rest[1] == told(whole, 0)[1]


def test_blocks_of_another_sample_are_not_cached_tokens() -> None:
    def cached(**given: Any) -> int:
        bench = Bench(max_running=1)
        _, sink = bench.add(list(range(1, 20)), n=2, do_sample=True, seed=1, **given)
        bench.run()
        usage = sink.events[-1].usage
        assert usage is not None
        return usage.cached_tokens

    assert cached(max_new_tokens=3) == 0
    assert cached(max_new_tokens=3, generated_ids=[[1, 2, 3], [1]]) == 0


def test_ended_samples_finish_before_the_others() -> None:
    ids = list("caf\u00e9 au lait".encode())
    events = run(n=2, do_sample=True, top_k=1, generated_ids=[[*ids, EOS], ids[:2]])
    assert told(events, 0) == ([], "", [], ("stop", EOS))
    assert told(events, 1) == ([*ids[2:], EOS], "f\u00e9 au lait", [], ("stop", EOS))
    assert events[-1].usage is not None and events[-1].usage.completion_tokens == 2 * 14


@for_each(
    ("given", "message"),
    [
        ({"generated_ids": "abc"}, "a list of token ids, or one such list for each sample"),
        ({"generated_ids": [1, "2"]}, "a list of token ids"),
        ({"generated_ids": [[1], 2]}, "a list of token ids"),
        ({"generated_ids": [1, True]}, "a list of token ids"),
        ({"generated_ids": [1, 260]}, "is 260: token ids are from 0 to 259"),
        ({"generated_ids": [-1]}, "is -1: token ids are from 0 to 259"),
        ({"generated_ids": [[1], [2]]}, "one list of token ids for each sample, and there are 1"),
        ({"generated_ids": [1], "n": 2, "do_sample": True}, "and there are 2"),
        ({"generated_ids": [1, EOS, 2]}, "sample 0 would have ended with 256"),
        ({"generated_ids": [97, 98, 99], "stop": ["b"]}, "would have ended with 'b'"),
        ({"generated_ids": [1, 2, 3], "max_new_tokens": 2}, "at most 2 tokens can follow"),
        ({"generated_ids": [1], "num_beams": 2}, "beam search cannot go on behind tokens; run it"),
        ({"generated_ids": [1], "penalty_alpha": 0.5, "top_k": 4}, "contrastive search cannot"),
        ({"generated_ids": [1], "prompt_lookup_num_tokens": 3}, "assisted generation cannot"),
        ({"generated_ids": [1], "custom_generate": print}, "a decoding method of your own cannot"),
        ({"generated_ids": [1], "token_healing": True}, "`token_healing`, which chooses"),
        (
            {"generated_ids": [[1], [2, 3]], "n": 2, "do_sample": True, "use_cache": False},
            "as many for each sample that goes on, because a kind of cache was asked for",
        ),
    ],
)
def test_impossible_generated_ids_are_refused_by_name(given: dict[str, Any], message: str) -> None:
    bench = Bench()
    with pytest.raises(InvalidRequestError) as caught:
        bench.prepare("abc", **given)
    assert caught.value.parameter == "generated_ids"
    assert message in str(caught.value)


def test_strategies_without_resume_repeat_their_answer_under_a_seed() -> None:
    model = PreTrainedModel(random_model(random_config("llama", vocab_size=260)))
    options = {"position_bytes": page_bytes(model.core.config, 1, model.dtype)}
    for case in (
        {"num_beams": 3, "do_sample": True},
        {"prompt_lookup_num_tokens": 3, "do_sample": True},
        {"penalty_alpha": 0.5, "top_k": 4},
    ):
        found = []
        for _ in range(2):
            bench = Bench(model, pages=256, **options)
            _, sink = bench.add([5, 6, 7, 5, 6], seed=3, max_new_tokens=12, **case)
            bench.run()
            found.append(told(sink.events, 0))
        assert found[0] == found[1]
