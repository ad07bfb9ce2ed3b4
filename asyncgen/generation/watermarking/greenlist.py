"""Green tokens: what they depend on, which they are, and the processor that favours them.

Kirchenbauer et al. 2023, arXiv 2301.10226 (algorithms 2 and 3) and 2306.04634.
"""

from __future__ import annotations

import functools
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.base import (
    BuildContext,
    Definition,
    LogitsProcessor,
    Stage,
    check_count,
)
from asyncgen.generation.watermarking.config import (
    WORD,
    BaseWatermarkingConfig,
    check_integer,
    watermark_error,
    watermark_from,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from asyncgen.generation.logits.base import Parameter


_log = logging.getLogger("asyncgen.generation")

_SCHEMES = ("lefthash", "selfhash")

_CANDIDATES = 40
"""With "selfhash", only so many of the likeliest tokens are tried."""

_TABLE_SIZE = 1_000_003
"""Entries of the permutation that "selfhash" mixes token ids with; a prime."""

_SEEDS = 2**64 - 1

_LISTS_KEPT = 128


@dataclass
class WatermarkingConfig(BaseWatermarkingConfig):
    """A watermark of favoured ("green") tokens.

    Kirchenbauer et al. 2023, arXiv 2301.10226 and 2306.04634.

    Attributes:
        greenlist_ratio: Share of the vocabulary that is green, strictly between 0 and 1.
        bias: Added to the scores of green tokens.
        hashing_key: Secret that the choice of green tokens depends on, below 2**64.
        seeding_scheme: "lefthash", where the last token decides which ones are green, or
            "selfhash", where the candidate itself has a say.
        context_width: Last tokens that have a say, at least 1.
    """

    greenlist_ratio: float = 0.25
    bias: float = 2.0
    hashing_key: int = 15485863
    seeding_scheme: str = "lefthash"
    context_width: int = 1

    def validate(self) -> None:
        """Check the fields.

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        for name in ("greenlist_ratio", "bias"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise watermark_error(name, value, "must be a number")
            if not (-WORD < value < WORD if isinstance(value, int) else math.isfinite(value)):
                raise watermark_error(name, value, "must be finite, and below 2**64")
        if not 0 < self.greenlist_ratio < 1:
            raise watermark_error(
                "greenlist_ratio", self.greenlist_ratio, "must be above 0 and below 1"
            )
        if self.seeding_scheme not in _SCHEMES:
            allowed = f"must be one of {', '.join(_SCHEMES)}"
            raise watermark_error("seeding_scheme", self.seeding_scheme, allowed)
        check_integer("hashing_key", self.hashing_key, 0)
        check_integer("context_width", self.context_width, 1)

    def construct_processor(
        self, vocab_size: int, device: str | torch.device
    ) -> WatermarkLogitsProcessor:
        """Make the processor that favours green tokens.

        Args:
            vocab_size: Tokens of the model.
            device: Where scores will be.
        """
        return WatermarkLogitsProcessor(vocab_size, device, **self.to_dict())


def add_green_bias(scores: Tensor, green: Tensor, bias: Parameter) -> Tensor:
    """Add a bias to the scores of green tokens.

    Args:
        scores: [B, V].
        green: Which tokens are green, bool [B, V].
        bias: What to add. Scalar or [B, 1].

    Returns:
        [B, V].
    """
    return torch.where(green, scores + bias, scores)


class GreenLists:
    """The green tokens after a context, a pseudorandom share of the vocabulary."""

    def __init__(
        self, vocab_size: int, device: str | torch.device, config: WatermarkingConfig
    ) -> None:
        """Prepare the random numbers.

        Args:
            vocab_size: Tokens of the model.
            device: Where the random numbers are made; another kind of device makes others.
            config: Checked.
        """
        self.vocab_size = vocab_size
        self.size = int(vocab_size * config.greenlist_ratio)
        self.device = torch.device(device)
        self._key = config.hashing_key
        self._width = config.context_width
        self._selfhash = config.seeding_scheme == "selfhash"
        self._generator = torch.Generator(device=self.device)
        self.of_seed = functools.lru_cache(maxsize=_LISTS_KEPT)(self._draw)

    def after(self, token: int) -> Tensor:
        """Return the green tokens after a token ("lefthash"), int64 [G]."""
        return self.of_seed(self._key * token % _SEEDS)

    def is_green(self, ngram: Sequence[int]) -> bool:
        """Tell whether the last token of an n-gram of text is green.

        Args:
            ngram: The tokens that had a say, and the token in question.
        """
        if not self._selfhash:
            return bool((self.after(ngram[-2]) == ngram[-1]).any())
        seeds = self.seeds(torch.tensor([ngram], dtype=torch.int64, device=self.device))
        return bool((self.of_seed(int(seeds[0]) % _SEEDS) == ngram[-1]).any())

    def seeds(self, ngrams: Tensor) -> Tensor:
        """Return the seed that each candidate gives ("selfhash"), int64 [...].

        Args:
            ngrams: Tokens that end with the candidate, int64 [..., N]; the last
                ``context_width`` of them have a say, the candidate among them.
        """
        # The products wrap modulo 2**64, which is part of the definition.
        mixed = self._permutation[ngrams[..., -self._width :] % _TABLE_SIZE] + 1
        own = self._permutation[ngrams[..., -1:] % _TABLE_SIZE] + 1
        return (self._key_tensor * mixed * own).amin(-1)

    def green_candidates(self, context: Tensor, candidates: Tensor) -> Tensor:
        """Tell which candidates are green in their own list ("selfhash").

        Args:
            context: The last tokens of each row, int64 [B, N].
            candidates: Token ids, int64 [B, C].

        Returns:
            bool [B, C].
        """
        before = context[:, None, :].expand(-1, candidates.shape[1], -1)
        seeds = self.seeds(torch.cat((before, candidates[..., None]), dim=-1))  # [B, C]
        pairs = zip(seeds.flatten().tolist(), candidates.flatten().tolist(), strict=True)
        green = [bool((self.of_seed(seed % _SEEDS) == token).any()) for seed, token in pairs]
        return torch.tensor(green, dtype=torch.bool, device=candidates.device).view_as(candidates)

    @functools.cached_property
    def _permutation(self) -> Tensor:
        self._generator.manual_seed(self._key)
        return torch.randperm(
            _TABLE_SIZE, dtype=torch.int64, device=self.device, generator=self._generator
        )

    @property
    def _key_tensor(self) -> int:
        # As an int64, which keys above 2**63 are not.
        key = self._key & (2**64 - 1)
        return key - 2**64 if key >> 63 else key

    def _draw(self, seed: int) -> Tensor:
        """Draw the green tokens of a seed, int64 [G]."""
        self._generator.manual_seed(seed)
        order = torch.randperm(
            self.vocab_size, dtype=torch.int64, device=self.device, generator=self._generator
        )
        return order[: self.size].clone()


class WatermarkLogitsProcessor(LogitsProcessor):
    """Adds a bias to green tokens (`add_green_bias`), so that more of them are generated."""

    definition = Definition(
        Stage.LAST,
        10,
        "watermarking_config",
        build=lambda _, value, setting: _watermark(value, setting),
    )

    def __init__(
        self,
        vocab_size: int,
        device: str | torch.device,
        greenlist_ratio: float = 0.25,
        bias: float = 2.0,
        hashing_key: int = 15485863,
        seeding_scheme: str = "lefthash",
        context_width: int = 1,
    ) -> None:
        """Check the parameters.

        Args:
            vocab_size: Tokens of the model.
            device: Where the green tokens are drawn; text is detected on the same kind of device.
            greenlist_ratio: Share of green tokens, strictly between 0 and 1.
            bias: Added to their scores.
            hashing_key: Secret that the choice depends on, at least 0.
            seeding_scheme: "lefthash" or "selfhash"; the latter tries only the 40 likeliest
                tokens and is slower.
            context_width: Last tokens that have a say, at least 1. The first tokens of a shorter
                sequence are not watermarked.

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        check_count("vocab_size", vocab_size)
        config = WatermarkingConfig(
            greenlist_ratio, bias, hashing_key, seeding_scheme, context_width
        )
        config.validate()
        self.vocab_size = vocab_size
        self.bias = bias
        self.seeding_scheme = seeding_scheme
        self.context_width = context_width
        self.green_lists = GreenLists(vocab_size, device, config)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply `add_green_bias`; ids are int64 [B, T], scores [B, V].

        Raises:
            InvalidRequestError: The scores are of another vocabulary.
        """
        if scores.shape[-1] < self.vocab_size:
            allowed = f"must not exceed the {scores.shape[-1]} scores of a token"
            raise InvalidRequestError("vocab_size", self.vocab_size, allowed)
        if input_ids.shape[1] < self.context_width:
            _log.debug(
                "%d tokens are fewer than the context of the watermark, %d; none is put in yet",
                input_ids.shape[1],
                self.context_width,
            )
            return scores
        green = torch.zeros_like(scores, dtype=torch.bool)
        if self.seeding_scheme == "selfhash":
            # A token that is not likely anyway need not be tried.
            likeliest = scores.topk(min(_CANDIDATES, scores.shape[-1])).indices
            chosen = self.green_lists.green_candidates(
                input_ids[:, -self.context_width :], likeliest
            )
            green = green.scatter(1, likeliest, chosen)
        else:
            lists = torch.stack([self.green_lists.after(t) for t in input_ids[:, -1].tolist()])
            green = green.scatter(1, lists.to(green.device), True)
        return add_green_bias(scores, green, self.bias)


def _watermark(value: Any, setting: BuildContext) -> Any:
    """Make the processor of any kind of watermark."""
    allowed = "needs a model's vocabulary size"
    vocab_size = setting.needed(setting.vocab_size, "watermarking_config", allowed)
    processor = watermark_from(value).construct_processor(vocab_size, setting.device)
    if hasattr(processor, "prompt_length"):
        processor.prompt_length = setting.prompt_length
    return processor
