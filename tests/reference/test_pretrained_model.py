"""The model's face beside the reference's: one forward pass and all that it may return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.static import StaticCache
from asyncgen.errors import InvalidRequestError
from asyncgen.reference.load_model import PreTrainedModel, load_model
from tests.cases import for_each
from tests.doubles.checkpoints import save_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"model_type": "mistral", "sliding_window": 5},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 16},
    "gpt2": {"model_type": "gpt2"},
}

IDS = torch.tensor([[3, 17, 25, 40, 8, 91, 5], [60, 2, 33, 7, 7, 12, 80]])
LEFT_PADDED = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]])


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-4)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PreTrainedModel, Any]:
    """Ours and the reference's model from one folder."""
    folder = tmp_path_factory.mktemp(request.param)
    save_checkpoint(folder, **ARCHITECTURES[request.param])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        str(folder), attn_implementation="eager"
    ).eval()
    theirs.requires_grad_(False)
    return load_model(folder, device="cpu"), theirs


@pytest.fixture
def model(tmp_path: Path) -> PreTrainedModel:
    save_checkpoint(tmp_path)
    return load_model(tmp_path, device="cpu")


def test_logits(pair: tuple[PreTrainedModel, Any]) -> None:
    ours, theirs = pair
    output = ours(IDS)
    close(output.logits, theirs(IDS).logits)
    assert output.past_key_values.get_seq_length() == 7
    assert not output.logits.requires_grad
    assert output.loss is None and output.hidden_states is None and output.attentions is None


def test_left_padding(pair: tuple[PreTrainedModel, Any]) -> None:
    ours, theirs = pair
    positions = (LEFT_PADDED.cumsum(1) - 1).clamp(min=0)
    expected = theirs(IDS, attention_mask=LEFT_PADDED, position_ids=positions).logits
    for mask in (LEFT_PADDED, LEFT_PADDED.bool(), LEFT_PADDED.float()):
        logits = ours(IDS, attention_mask=mask).logits
        close(logits[0, 2:], expected[0, 2:])
        close(logits[1], expected[1])


def test_padding_changes_nothing(pair: tuple[PreTrainedModel, Any]) -> None:
    ours, _ = pair
    padded = ours(IDS, attention_mask=LEFT_PADDED).logits
    close(padded[0, 2:], ours(IDS[:1, 2:]).logits[0])


@for_each("pieces", [[7], [3, 4], [1] * 7, [5, 1, 1]])
@for_each("padded", [True, False])
def test_cache_changes_nothing(
    pair: tuple[PreTrainedModel, Any], pieces: list[int], padded: bool
) -> None:
    ours, _ = pair
    mask = LEFT_PADDED if padded else None
    whole = ours(IDS, attention_mask=mask).logits
    cache, start, logits = DynamicCache(), 0, []
    for size in pieces:
        end = start + size
        output = ours(
            IDS[:, start:end],
            attention_mask=None if mask is None else mask[:, :end],
            past_key_values=cache,
            cache_position=torch.arange(start, end),
        )
        assert output.past_key_values is cache
        logits.append(output.logits)
        start = end
    real = LEFT_PADDED.bool() if padded else torch.ones_like(IDS).bool()
    close(torch.cat(logits, dim=1)[real], whole[real])


def test_static_cache(model: PreTrainedModel) -> None:
    cache = StaticCache(model.config, max_batch_size=2, max_cache_len=16)
    first = model(IDS[:, :4], past_key_values=cache).logits
    second = model(IDS[:, 4:], past_key_values=cache).logits
    close(torch.cat([first, second], dim=1), model(IDS).logits)


def test_hidden_states_and_attentions(pair: tuple[PreTrainedModel, Any]) -> None:
    ours, theirs = pair
    options = {"output_hidden_states": True, "output_attentions": True}
    mine, other = ours(IDS, **options), theirs(IDS, **options)
    assert len(mine.hidden_states) == len(other.hidden_states) == 3
    assert len(mine.attentions) == len(other.attentions) == 2
    for left, right in zip(mine.hidden_states, other.hidden_states, strict=True):
        close(left, right)
    for left, right in zip(mine.attentions, other.attentions, strict=True):
        close(left, right)
    close(mine.logits, ours(IDS).logits)


def test_embeddings_instead_of_ids(pair: tuple[PreTrainedModel, Any]) -> None:
    ours, theirs = pair
    embeddings = theirs.get_input_embeddings()(IDS)
    close(ours(inputs_embeds=embeddings).logits, theirs(inputs_embeds=embeddings).logits)
    assert torch.equal(ours(inputs_embeds=embeddings).logits, ours(IDS).logits)


def test_position_ids(pair: tuple[PreTrainedModel, Any]) -> None:
    ours, theirs = pair
    positions = torch.arange(7)[None] * 2 + 3
    expected = theirs(IDS, position_ids=positions).logits
    close(ours(IDS, position_ids=positions).logits, expected)
    close(ours(IDS, position_ids=positions[0]).logits, expected)
    close(ours(IDS, position_ids=positions.expand(2, -1)).logits, expected)


def test_loss(pair: tuple[PreTrainedModel, Any]) -> None:
    ours, theirs = pair
    labels = IDS.masked_fill(IDS == 7, -100)
    close(ours(IDS, labels=labels).loss, theirs(IDS, labels=labels).loss)


@for_each("keep", [0, 1, 3, 99, torch.tensor([0, 2])])
def test_logits_to_keep(pair: tuple[PreTrainedModel, Any], keep: int | torch.Tensor) -> None:
    ours, theirs = pair
    close(ours(IDS, logits_to_keep=keep).logits, theirs(IDS, logits_to_keep=keep).logits)


def test_without_cache_and_as_tuple(model: PreTrainedModel) -> None:
    assert model(IDS, use_cache=False).past_key_values is None
    logits, cache = model(IDS, return_dict=False)
    assert torch.equal(logits, model(IDS)[0])
    assert isinstance(cache, DynamicCache)
    assert model(IDS, use_cache=False, return_dict=False)[1:] == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "`input_ids` is None: give exactly one of"),
        ({"input_ids": IDS, "inputs_embeds": torch.zeros(2, 7, 32)}, "give exactly one of"),
        ({"input_ids": IDS[0]}, r"give integers of shape \[B, S\]"),
        ({"input_ids": IDS.float()}, r"give integers of shape \[B, S\]"),
        ({"input_ids": IDS + 90}, r"`input_ids` is \[92, 181\]: ids go from 0 to 95"),
        ({"input_ids": -IDS}, "ids go from 0 to 95"),
        ({"inputs_embeds": torch.zeros(2, 7, 31)}, r"its shape must be \[B, S, 32\]"),
        ({"input_ids": IDS, "attention_mask": LEFT_PADDED[:, 1:]}, r"must be \[2, 7\]: rows, and"),
        ({"input_ids": IDS, "position_ids": torch.arange(6)}, r"must be \[2, 7\] or \[1, 7\]"),
        ({"input_ids": IDS, "past_key_values": ()}, "`past_key_values` is 'tuple': give a cache"),
        ({"input_ids": IDS, "cache_position": torch.arange(7) + 1}, "here at 0 to 6"),
        ({"input_ids": IDS, "logits_to_keep": -1}, "`logits_to_keep` is -1"),
        ({"input_ids": IDS, "labels": IDS[:, 1:]}, r"`labels` is \(2, 6\): .* \[2, 7\]"),
    ],
)
def test_bad_arguments(model: PreTrainedModel, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        model(**arguments)


def test_unknown_arguments(model: PreTrainedModel) -> None:
    with pytest.raises(TypeError, match="token_types"):
        model(IDS, token_types=IDS)
    with pytest.raises(InvalidRequestError, match="`token_type_ids` .* llama model has no types"):
        model(IDS, token_type_ids=IDS)


def test_generate_continues_the_forward(pair: tuple[PreTrainedModel, Any]) -> None:
    ours, theirs = pair
    options: dict[str, Any] = {
        "max_new_tokens": 8,
        "do_sample": False,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    mine = ours.generate(IDS, attention_mask=LEFT_PADDED, **options)
    assert isinstance(mine, torch.Tensor)
    assert torch.equal(mine, theirs.generate(IDS, attention_mask=LEFT_PADDED, **options))


def test_it_runs_and_does_not_train(model: PreTrainedModel) -> None:
    assert not model.training
    assert model.eval() is model
    with pytest.raises(InvalidRequestError, match="these models run and do not train"):
        model.train()
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_map_of_devices_goes_to_a_cache_as_documented(model: PreTrainedModel) -> None:
    places: dict[Any, Any] = dict(model.hf_device_map)
    cache = StaticCache(
        config=model.config, max_batch_size=2, max_cache_len=12, layer_device_map=places
    )
    found = model.generate(IDS, past_key_values=cache, max_new_tokens=3, do_sample=False)
    expected = model.generate(IDS, max_new_tokens=3, do_sample=False)
    assert torch.equal(torch.as_tensor(found), torch.as_tensor(expected))


def test_conversion_and_moving(model: PreTrainedModel) -> None:
    expected = model(IDS).logits
    assert model.dtype is torch.float32 and model.device == torch.device("cpu")
    assert model.hf_device_map == {"": torch.device("cpu")}
    model.to(torch.bfloat16)
    assert model.dtype is torch.bfloat16
    assert model(IDS).logits.dtype is torch.bfloat16
    model.to("cpu", torch.float32)
    torch.testing.assert_close(model(IDS).logits, expected, atol=0.05, rtol=0.05)
