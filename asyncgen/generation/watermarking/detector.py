"""Finds a watermark in token ids, with the settings that put it in."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError, InWords
from asyncgen.generation.config.rules import Range, require, switch
from asyncgen.generation.watermarking.config import watermark_from
from asyncgen.generation.watermarking.greenlist import GreenLists, WatermarkingConfig

if TYPE_CHECKING:
    import numpy
    import torch
    from torch import Tensor

    from asyncgen.generation.watermarking.bayes import BayesianDetectorModel
    from asyncgen.generation.watermarking.synthid import SynthIDTextWatermarkLogitsProcessor


@dataclass
class WatermarkDetectorOutput:
    """Findings of a `WatermarkDetector`, one value for each text.

    Attributes:
        num_tokens_scored: Tokens that could be looked at, float64 [B].
        num_green_tokens: Green ones among them, float64 [B].
        green_fraction: Their share, [B].
        z_score: By how many standard deviations that exceeds chance, [B].
        p_value: How probable so many or more are by chance, [B].
        prediction: Whether the z-score exceeds the threshold, bool [B].
        confidence: ``1 - p_value``, [B].
    """

    num_tokens_scored: numpy.ndarray | None = None
    num_green_tokens: numpy.ndarray | None = None
    green_fraction: numpy.ndarray | None = None
    z_score: numpy.ndarray | None = None
    p_value: numpy.ndarray | None = None
    prediction: numpy.ndarray | None = None
    confidence: numpy.ndarray | None = None


class WatermarkDetector:
    """Counts green tokens (`WatermarkLogitsProcessor`) and compares with chance.

    Kirchenbauer et al. 2023, arXiv 2301.10226, equation 3.
    """

    def __init__(
        self,
        model_config: Any,
        device: str | torch.device,
        watermarking_config: WatermarkingConfig | dict[str, Any],
        ignore_repeated_ngrams: bool = False,
        max_cache_size: int = 128,
    ) -> None:
        """Prepare the same green tokens.

        Args:
            model_config: Of the model that wrote: ``vocab_size`` and the ids of its special tokens
                are read.
            device: The kind of device that it ran on.
            watermarking_config: The settings that it wrote with.
            ignore_repeated_ngrams: Count every different n-gram once.
            max_cache_size: N-grams whose answer is remembered.

        Raises:
            InvalidRequestError: The settings are out of range or of another watermark.
        """
        require("ignore_repeated_ngrams", ignore_repeated_ngrams, switch)
        if max_cache_size is not None:  # as of `functools.lru_cache`
            require("max_cache_size", max_cache_size, Range(0, whole=True))
        config = watermark_from(watermarking_config)
        if not isinstance(config, WatermarkingConfig):
            allowed = "is detected with a SynthIDTextWatermarkDetector"
            raise InvalidRequestError("watermarking_config", watermarking_config, allowed)
        is_decoder = getattr(model_config, "is_encoder_decoder", False)
        begin = "decoder_start_token_id" if is_decoder else "bos_token_id"
        self.bos_token_id = getattr(model_config, begin, None)
        # Where there is no filler, generation fills with the end of sequence.
        fillers = getattr(model_config, "pad_token_id", None)
        if fillers is None:
            fillers = getattr(model_config, "eos_token_id", None)
        self._fillers = {*fillers} if isinstance(fillers, (list, tuple)) else {fillers}
        self.greenlist_ratio = config.greenlist_ratio
        self.ignore_repeated_ngrams = ignore_repeated_ngrams
        self._context_width = config.context_width
        selfhash = config.seeding_scheme == "selfhash"
        # With "selfhash" the token itself is one of those that have a say.
        self._ngram_len = config.context_width + (0 if selfhash else 1)
        lists = GreenLists(model_config.vocab_size, device, config)
        self._is_green = functools.lru_cache(maxsize=max_cache_size)(lists.is_green)

    def __call__(
        self, input_ids: Tensor, z_threshold: float = 3.0, return_dict: bool = False
    ) -> WatermarkDetectorOutput | numpy.ndarray:
        """Look at texts.

        Args:
            input_ids: int64 [B, T], best without the prompt. Padding on the left and a leading
                beginning-of-sequence token are left out, so each row counts as it does alone.
            z_threshold: Texts above are taken as watermarked; a higher one errs less often on
                texts that are not.
            return_dict: Whether to return all that was found.

        Returns:
            Predictions, bool [B], or the whole output.

        Raises:
            InvalidRequestError: Only some texts begin with a beginning-of-sequence token behind
                their padding, or one is too short for the context.
            ImportError: numpy is not installed; nothing else here needs it.
        """
        try:
            import numpy
        except ImportError as error:
            message = "the documented outputs are numpy arrays; run `pip install numpy`"
            raise ImportError(message) from error

        rows = self._rows(input_ids)
        counts = [self._count(row) for row in rows]
        scored = numpy.array([total for total, _ in counts], dtype=numpy.float64)
        green = numpy.array([found for _, found in counts], dtype=numpy.float64)
        ratio = self.greenlist_ratio
        z_score = (green - ratio * scored) / numpy.sqrt(scored * ratio * (1 - ratio))
        prediction: numpy.ndarray = z_score > z_threshold
        if not return_dict:
            return prediction
        p_value = _normal_tail(z_score)
        return WatermarkDetectorOutput(
            num_tokens_scored=scored,
            num_green_tokens=green,
            green_fraction=green / scored,
            z_score=z_score,
            p_value=p_value,
            prediction=prediction,
            confidence=1 - p_value,
        )

    def _rows(self, input_ids: Tensor) -> list[list[int]]:
        """Take padding on the left and the first special token off, and check the length."""
        if input_ids.dim() != 2:
            raise InvalidRequestError("input_ids", tuple(input_ids.shape), "must be [B, T]")
        bos, rows = self.bos_token_id, [self._text(row) for row in input_ids.tolist()]
        begins = [row[:1] == [bos] for row in rows]
        # Where the same token fills and begins, it is gone with the padding.
        if bos not in self._fillers and any(begins) and not all(begins):
            allowed = "begin with a beginning-of-sequence token in some rows only"
            raise InvalidRequestError("input_ids", [row[:1] for row in rows], allowed)
        rows = [row[begin:] for row, begin in zip(rows, begins, strict=True)]
        shortest = min(map(len, rows), default=0)
        if shortest <= self._context_width:
            allowed = f"must be longer than the context of the watermark, {self._context_width}"
            raise InvalidRequestError("input_ids", InWords(f"a text of {shortest} tokens"), allowed)
        return rows

    def _text(self, row: list[int]) -> list[int]:
        """Return a row from behind its padding on the left."""
        first = next((at for at, token in enumerate(row) if token not in self._fillers), len(row))
        return row[first:]

    def _count(self, row: list[int]) -> tuple[int, int]:
        """Count the tokens that can be looked at, and the green ones."""
        size = self._ngram_len
        ngrams = Counter(tuple(row[i : i + size]) for i in range(len(row) - size + 1))
        if self.ignore_repeated_ngrams:
            ngrams = Counter(ngrams.keys())
        green = sum(times for ngram, times in ngrams.items() if self._is_green(ngram))
        return ngrams.total(), green


def _normal_tail(z_score: numpy.ndarray) -> numpy.ndarray:
    """The probability that a standard normal variable exceeds each value."""
    import torch

    return 0.5 * torch.special.erfc(torch.from_numpy(z_score) / 2**0.5).numpy()


class SynthIDTextWatermarkDetector:
    """Finds SynthID's watermark with a trained `BayesianDetectorModel`."""

    def __init__(
        self,
        detector_module: BayesianDetectorModel,
        logits_processor: SynthIDTextWatermarkLogitsProcessor,
        tokenizer: Any,
    ) -> None:
        """Put the parts together.

        Args:
            detector_module: Trained on texts with this watermark.
            logits_processor: Has the keys that the texts were written with.
            tokenizer: Its ``eos_token_id`` ends a text.
        """
        self.detector_module = detector_module
        self.logits_processor = logits_processor
        self.tokenizer = tokenizer

    def __call__(self, tokenized_outputs: Tensor) -> Any:
        """Look at texts.

        Args:
            tokenized_outputs: int64 [B, T], without the prompt.

        Returns:
            What the module returns: a tuple whose first value is the probability that each text
            is watermarked, [B].
        """
        processor = self.logits_processor
        mask = processor.compute_context_repetition_mask(tokenized_outputs)
        if self.tokenizer.eos_token_id is not None:
            before_end = processor.compute_eos_token_mask(
                tokenized_outputs, self.tokenizer.eos_token_id
            )
            mask = mask & before_end[:, processor.ngram_len - 1 :].bool()
        return self.detector_module(processor.compute_g_values(tokenized_outputs), mask)
