"""Modules of a user's own with every cache, and models of transformers under our mixin."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import asyncgen
from asyncgen.errors import InvalidRequestError
from tests.cases import for_each

transformers = pytest.importorskip("transformers")

V, E, H, LAYERS = 61, 24, 3, 2
PROMPTS = torch.tensor([[5, 9, 11, 4, 7, 5], [0, 0, 8, 3, 40, 17]])
MASK = (PROMPTS != 0).long()
LENGTH = {"max_new_tokens": 9, "pad_token_id": 0}


class Block(nn.Module):
    """Attention of some heads, causal, with keys and values of a cache."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.qkv, self.out, self.up = nn.Linear(E, 3 * E), nn.Linear(E, E), nn.Linear(E, E)

    def forward(self, x: Tensor, mask: Tensor, cache: Any) -> Tensor:
        rows, length, _ = x.shape
        heads = self.qkv(x).view(rows, length, 3, H, E // H).permute(2, 0, 3, 1, 4)
        queries, keys, values = heads
        if cache is not None:
            keys, values = cache.update(keys, values, self.index)
        keys, values = keys[:, :, : mask.shape[2]], values[:, :, : mask.shape[2]]
        seen = mask[:, None, -length:]
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, length, E))
        return x + torch.tanh(self.up(x))


class Plain(nn.Module):
    """A language model of a user's own, without a mixin."""

    main_input_name = "input_ids"
    _is_stateful = False

    def __init__(self, output: Any, config: Any) -> None:
        super().__init__()
        self.output, self.config = output, config
        self.tokens, self.places = nn.Embedding(V, E), nn.Embedding(64, E)
        self.blocks = nn.ModuleList(Block(index) for index in range(LAYERS))
        self.head = nn.Linear(E, V)
        self.calls: list[tuple[int, ...]] = []

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    # The mixin of transformers asks for these, which its own base class has.
    def is_remote_code(self) -> bool:
        return False

    def get_experts_implementation(self) -> str:
        return "eager"

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        self.calls.append(tuple(input_ids.shape))
        assert position_ids is not None and position_ids.shape == input_ids.shape and return_dict
        if attention_mask is None:  # in transformers, where nothing is padded
            past = past_key_values.get_seq_length() if use_cache else 0
            attention_mask = input_ids.new_ones(len(input_ids), past + input_ids.shape[1])
        total = attention_mask.shape[1]
        causal = torch.ones(total, total, dtype=torch.bool).tril()
        mask = causal & attention_mask[:, None].bool()
        mask = mask | torch.eye(total, dtype=torch.bool)
        x = self.tokens(input_ids) + self.places(position_ids)
        for block in self.blocks:
            x = block(x, mask, past_key_values if use_cache else None)
        return self.output(logits=3 * self.head(x), past_key_values=past_key_values)


def both(change: Any = None, **config: Any) -> tuple[Any, Any]:
    """The same weights under the mixin of transformers and under ours."""
    made: list[Any] = []
    numbers = {"vocab_size": V, "hidden_size": E, "num_attention_heads": H}
    numbers |= {"num_hidden_layers": LAYERS, "head_dim": E // H, **config}
    for module in (transformers, asyncgen):
        extra = {} if change is None else change()
        kind = type("Mine", (Plain, module.GenerationMixin), extra)
        output = transformers.modeling_outputs.CausalLMOutputWithPast
        if module is asyncgen:
            output = asyncgen.CausalLMOutputWithPast
        torch.manual_seed(4)
        model = kind(output, transformers.LlamaConfig(**numbers)).eval()
        model.generation_config = module.GenerationConfig(eos_token_id=[2, 33])
        made.append(model)
    return made[0], made[1]


FEW: list[dict[str, Any]] = [
    {"cache_implementation": "static"},
    {"cache_implementation": "dynamic", "num_beams": 2},
]
MORE: list[dict[str, Any]] = [
    {},
    {"use_cache": False},
    {"do_sample": True, "top_k": 20, "temperature": 1.3},
    {"do_sample": True, "num_return_sequences": 3, "use_cache": False},
    {"num_beams": 3},
    {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.3, "use_cache": False},
    {"num_beams": 3, "do_sample": True, "top_p": 0.8},
    {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "min_new_tokens": 7},
]


@for_each("way", FEW)
def test_tokens_of_a_plain_module_are_those_of_the_reference(way: dict[str, Any]) -> None:
    check(way, (PROMPTS, {"attention_mask": MASK}))


@pytest.mark.gate
@for_each("way", FEW + MORE)
def test_every_way_to_decode_a_plain_module(way: dict[str, Any]) -> None:
    check(way, (PROMPTS, {"attention_mask": MASK}), (PROMPTS[:1], {}))


def check(way: dict[str, Any], *prompts: tuple[Tensor, dict[str, Any]]) -> None:
    """Compare tokens, scores and calls of a way to decode."""
    theirs, ours = both()
    for ids, mask in prompts:
        found = []
        for model in (theirs, ours):
            torch.manual_seed(11)
            kept = {"return_dict_in_generate": True, "output_scores": True}
            given = {"do_sample": False, **way, **mask, **LENGTH, **kept}
            if model is theirs:  # which hands masks of four dimensions on beside a static cache
                given.pop("cache_implementation", None)
            found.append(model.generate(ids, **given))
        expected, answer = found
        assert answer.sequences.tolist() == expected.sequences.tolist()
        for one, other in zip(answer.scores, expected.scores, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
        if "num_beams" not in way:
            assert ours.calls == theirs.calls
        ours.calls.clear()
        theirs.calls.clear()


def test_drafts_from_the_prompt_give_the_tokens_of_plain_decoding() -> None:
    theirs, ours = both()
    ids = torch.tensor([[5, 9, 11, 4, 7, 5, 9, 11]])
    expected = theirs.generate(ids, do_sample=False, **LENGTH)
    found = ours.generate(ids, do_sample=False, prompt_lookup_num_tokens=3, **LENGTH)
    assert found.tolist() == expected.tolist()


def test_streamers_and_criteria_are_asked_as_in_the_reference() -> None:
    answers = []
    for model, module in zip(both(), (transformers, asyncgen), strict=True):
        said: list[Any] = []
        streamer: Any = type("Recorder", (module.generation.streamers.BaseStreamer,), {})
        streamer.put = lambda self, value, said=said: said.append(value.tolist())
        streamer.end = lambda self, said=said: said.append("end")
        streamer.__abstractmethods__ = frozenset()
        criteria = module.StoppingCriteriaList([stops_at_ten])
        call: dict[str, Any] = {"streamer": streamer(), "stopping_criteria": criteria, **LENGTH}
        found = model.generate(PROMPTS[:1], do_sample=False, **call)
        assert found.shape == (1, 10)
        answers.append((found.tolist(), said))
    assert answers[0] == answers[1]


def stops_at_ten(input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
    return torch.full((len(input_ids),), input_ids.shape[1] >= 10)


@pytest.mark.gate
def test_a_hook_of_ones_own_makes_the_inputs() -> None:
    def change() -> dict[str, Any]:
        def prepare_inputs_for_generation(
            self: Any, input_ids: Tensor, past_key_values: Any = None, **kwargs: Any
        ) -> dict[str, Any]:
            past = 0 if past_key_values is None else past_key_values.get_seq_length()
            places = torch.arange(input_ids.shape[1])[None].expand(len(input_ids), -1) + 1
            return {
                "input_ids": input_ids[:, past:],
                "position_ids": places[:, past:],
                "attention_mask": torch.ones_like(input_ids),
                "past_key_values": past_key_values,
                "use_cache": kwargs["use_cache"],
            }

        return {"prepare_inputs_for_generation": prepare_inputs_for_generation}

    theirs, ours = both(change)
    for way in ({}, {"num_beams": 3}, {"use_cache": False}):
        given: dict[str, Any] = {"do_sample": False, **way, **LENGTH}
        expected = theirs.generate(PROMPTS[:1], **given)
        assert ours.generate(PROMPTS[:1], **given).tolist() == expected.tolist()
        assert ours.calls == theirs.calls or "num_beams" in way


def test_a_cache_goes_on_in_the_next_call() -> None:
    theirs, ours = both()
    for model, module in ((theirs, transformers), (ours, asyncgen)):
        cache = module.DynamicCache()
        first = model.generate(PROMPTS[:1], past_key_values=cache, do_sample=False, **LENGTH)
        more = torch.cat((first, PROMPTS[:1]), dim=1)
        model.calls.clear()
        model.generate(more, past_key_values=cache, do_sample=False, **LENGTH)
    assert ours.calls == theirs.calls and ours.calls[0] == (1, 7)


class Wrapped(nn.Module, asyncgen.GenerationMixin):
    """A model of another library, handed everything on."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.config = inner, inner.config

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner.prepare_inputs_for_generation(*args, **kwargs)


@pytest.mark.parametrize(
    "model_type",
    ["mistral", *(pytest.param(each, marks=pytest.mark.gate) for each in ("gpt2", "llama"))],
)
def test_a_model_of_the_reference_decodes_with_our_mixin_and_caches(model_type: str) -> None:
    shape = {"vocab_size": V, "hidden_size": 24, "num_attention_heads": 3, "pad_token_id": 0}
    shape |= {"num_hidden_layers": 2, "eos_token_id": 2}
    if model_type != "gpt2":
        shape |= {"num_key_value_heads": 3, "intermediate_size": 32, "sliding_window": 5}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **shape)
    inner = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in inner.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    for way in ({}, {"num_beams": 3}, {"use_cache": False}):
        given: dict[str, Any] = {"attention_mask": MASK, "do_sample": False, **way, **LENGTH}
        expected = inner.generate(PROMPTS, **given)
        found: Any = Wrapped(inner).generate(PROMPTS, **given)
        assert found.tolist() == expected.tolist()


class Forgetful(nn.Module, asyncgen.GenerationMixin):
    """A module without a cache, a mask, a configuration of generation or ``return_dict``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.config = copy.copy(transformers.GPT2Config(vocab_size=V, eos_token_id=3))
        self.table = nn.Embedding(V, V)

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        return {"logits": self.table(input_ids).cumsum(dim=1)}


def test_a_module_that_takes_only_ids_reads_all_of_them_in_every_step() -> None:
    model, ids = Forgetful(), [5, 9]
    found: Any
    with torch.no_grad():
        for _ in range(6):
            ids.append(int(model(torch.tensor([ids]))["logits"][0, -1].argmax()))
    found = model.generate(torch.tensor([[5, 9]]), max_new_tokens=6, do_sample=False)
    assert found[0].tolist() == ids[: found.shape[1]] and (len(found[0]) == 8 or found[0, -1] == 3)
    assert not found.requires_grad


def test_what_a_module_lacks_is_named() -> None:
    class Bare(nn.Module, asyncgen.GenerationMixin):
        config: Any = None

        answer: Any = torch.zeros(1, 1, V)

        def forward(self, input_ids: Tensor) -> Any:
            return self.answer

    model = Bare()
    config = transformers.GPT2Config(vocab_size=V)
    cases = [
        (transformers.T5Config(vocab_size=V), Bare.answer, "no encoder"),
        (config, Bare.answer, "`forward` is 'Tensor': must return"),
        (config, {"logits": torch.zeros(1, 0, V)}, rf"`logits` of \[1, 0, {V}\]"),
        (config, {"logits": torch.zeros(1, V)}, rf"`logits` of \[1, {V}\]"),
    ]
    for model.config, model.answer, named in cases:
        with pytest.raises(InvalidRequestError, match=named):
            model.generate(PROMPTS[:1], max_new_tokens=2)
    whole = both()[1]
    for way in ({"dola_layers": "low"}, {"penalty_alpha": 0.6, "top_k": 4}):
        with pytest.raises(InvalidRequestError, match="reads the layers of the network"):
            whole.generate(PROMPTS[:1], max_new_tokens=2, **way)
