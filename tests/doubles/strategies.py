"""Every decoding strategy as a case, for laws that hold for all of them.

A strategy without a case fails :func:`check_complete`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from asyncgen.families.config import ModelConfig
from asyncgen.generation.config.modes import GenerationMode
from asyncgen.generation.strategies import STRATEGIES
from asyncgen.models.core import make_core
from asyncgen.reference.load_model import PreTrainedModel
from asyncgen.text.tokenizer import Tokenizer
from tests.doubles.models import EOS, PAD, VOCABULARY, byte_tokenizer
from tests.models.build import our_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CASES", "Case", "check_complete", "options_of", "other_tokenizer", "tiny_model"]

_SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}


def tiny_model(seed: int = 0, **shape: Any) -> PreTrainedModel:
    """A random model for `byte_tokenizer`; a new object every time."""
    raw = {**_SHAPE, **shape}
    with torch.device("meta"):
        rules = make_core(ModelConfig.from_hf(raw)).weight_map()
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for rule in rules:
        for source, size in zip(rule.sources, rule.shapes, strict=True):
            values = torch.empty(size).uniform_(-0.6, 0.6, generator=generator)
            state[source] = values + 1.0 if "norm" in source else values
    model = PreTrainedModel(our_model(raw, state))
    model.generation_config.update(eos_token_id=EOS, pad_token_id=PAD)
    return model


def _draft(seed: int) -> PreTrainedModel:
    """A new one every time: a draft model learns how far to guess."""
    return tiny_model(seed, num_hidden_layers=1)


@cache
def other_tokenizer() -> Tokenizer:
    """The bytes in the reverse order: other ids for the same text."""
    known = byte_tokenizer().get_vocab()
    vocabulary = {token: 255 - number for token, number in known.items() if number < 256}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<eos>", special=True)])
    return Tokenizer(backend, special_tokens={"eos_token": "<eos>"})


@dataclass(frozen=True)
class Case:
    """A strategy with what asks for it.

    Attributes:
        name: For the test's id.
        mode: The strategy.
        make: Parameters that both doors take.
        is_sampled: Whether it draws.
        takes_rows: Whether it decodes several rows at a time.
        is_rowwise: Whether a row is decoded as it would be alone.
        is_linear: Whether a token once settled by the scores is final, as it is not with beams.
    """

    name: str
    mode: GenerationMode
    make: Callable[[], dict[str, Any]] = field(repr=False)
    is_sampled: bool = False
    takes_rows: bool = True
    is_rowwise: bool = True
    is_linear: bool = True

    def __str__(self) -> str:
        """The name."""
        return self.name


_HOT: dict[str, Any] = {"do_sample": True, "temperature": 1.5, "top_k": 0}


def _universal() -> dict[str, Any]:
    return {"assistant_model": _draft(3), "assistant_tokenizer": other_tokenizer()}


def _all() -> Iterator[Case]:
    mode = GenerationMode
    yield Case("greedy", mode.GREEDY_SEARCH, dict)
    yield Case("sampling", mode.SAMPLE, lambda: dict(_HOT), is_sampled=True)
    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "assistant": lambda: {"assistant_model": _draft(2)},
        "prompt lookup": lambda: {"prompt_lookup_num_tokens": 3},
        "early exit": lambda: {"assistant_early_exit": 2},
        "universal": _universal,
    }
    for name, make in ways.items():
        yield Case(name, mode.ASSISTED_GENERATION, make, takes_rows=False)
        yield Case(
            f"{name} sampled",
            mode.ASSISTED_GENERATION,
            lambda make=make: {**make(), **_HOT},  # type: ignore[misc]
            is_sampled=True,
            takes_rows=False,
        )
    search: dict[str, Any] = {"penalty_alpha": 0.6, "top_k": 4}
    yield Case("contrastive", mode.CONTRASTIVE_SEARCH, lambda: dict(search))
    yield Case(
        "contrastive frugal", mode.CONTRASTIVE_SEARCH, lambda: {**search, "low_memory": True}
    )
    # One layer is chosen for all rows together, as in the reference.
    yield Case("dola", mode.DOLA_GENERATION, lambda: {"dola_layers": "high"}, is_rowwise=False)
    yield Case("beams", mode.BEAM_SEARCH, lambda: {"num_beams": 3}, is_linear=False)
    yield Case(
        "sampled beams",
        mode.BEAM_SAMPLE,
        lambda: {"num_beams": 3, **_HOT},
        is_sampled=True,
        is_linear=False,
    )
    yield Case(
        "beam groups",
        mode.GROUP_BEAM_SEARCH,
        lambda: {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
        is_linear=False,
    )
    yield Case(
        "constrained beams",
        mode.CONSTRAINED_BEAM_SEARCH,
        lambda: {"num_beams": 3, "force_words_ids": [[40, 41]]},
        is_linear=False,
    )


CASES: tuple[Case, ...] = tuple(case for case in _all() if case.mode in STRATEGIES)
"""The cases of every strategy that there is."""


def check_complete() -> None:
    """Fail where a strategy has no case."""
    missing = STRATEGIES.keys() - {case.mode for case in CASES}
    assert not missing, f"add a case to tests/doubles/strategies.py for {sorted(missing)}"


def options_of(case: Case) -> dict[str, Any]:
    """Parameters for ``model.generate``, which has to be told the tokenizer."""
    options = case.make()
    if "assistant_tokenizer" in options:
        options["tokenizer"] = byte_tokenizer()
    return options
