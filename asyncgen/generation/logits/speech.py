"""Rules of speech models: the two codebooks of Bark, the timestamps of Whisper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from asyncgen.generation.logits.base import LogitsProcessor, check_count

if TYPE_CHECKING:
    from torch import Tensor


class AlternatingCodebooksLogitsProcessor(LogitsProcessor):
    """Generates from two codebooks in turn, as Bark's coarse model needs it."""

    def __init__(self, input_start_len: int, semantic_vocab_size: int, codebook_size: int) -> None:
        """Check the sizes.

        Args:
            input_start_len: Length of the prompt; the token after it is from the first codebook.
            semantic_vocab_size: Tokens before the first codebook; none of them is generated.
            codebook_size: Tokens of the first codebook; the second takes the rest.

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        self.input_start_len = check_count("input_start_len", input_start_len, least=0)
        self.semantic_vocab_size = check_count("semantic_vocab_size", semantic_vocab_size, least=0)
        self.codebook_size = check_count("codebook_size", codebook_size)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Ban the other codebook; ids are int64 [B, T], scores [B, V]."""
        middle = self.semantic_vocab_size + self.codebook_size
        tokens = torch.arange(scores.shape[-1], dtype=torch.int64, device=scores.device)
        if (input_ids.shape[1] - self.input_start_len) % 2 == 0:
            banned = (tokens < self.semantic_vocab_size) | (tokens >= middle)
        else:
            banned = tokens < middle
        return scores.masked_fill(banned, -torch.inf)


def allow_timestamps(
    scores: Tensor, generated: Tensor, first_timestamp: int, eos_token_id: int
) -> Tensor:
    """Ban what would break the pairs of timestamps, or turn time back.

    Radford et al. 2022, arXiv 2212.04356: a segment of text lies between two timestamps, which do
    not decrease.

    Args:
        scores: [B, V].
        generated: Tokens since the beginning of the transcript, int64 [B, N].
        first_timestamp: Tokens from here on are timestamps.
        eos_token_id: Tokens below are text.

    Returns:
        [B, V].
    """
    length = generated.shape[1]
    if not length:
        return scores
    is_time = generated >= first_timestamp  # [B, N]
    last = is_time[:, -1:]
    before = is_time[:, -2:-1] if length > 1 else torch.ones_like(last)
    tokens = torch.arange(scores.shape[-1], dtype=torch.int64, device=scores.device)  # [V]
    banned = last & before & (tokens >= first_timestamp)
    opened = last & ~before
    banned |= opened & (tokens < eos_token_id)
    places = torch.arange(length, dtype=torch.int64, device=generated.device)
    latest = generated.gather(1, torch.where(is_time, places, -1).amax(1, True).clamp(min=0))
    # The end of a segment may be the begin of it; the begin of the next one is repeated as well.
    least = torch.where(opened, latest, latest + 1)
    banned |= is_time.any(1, True) & (tokens >= first_timestamp) & (tokens < least)
    return scores.masked_fill(banned, -torch.inf)


def prefer_timestamps(scores: Tensor, first_timestamp: int) -> Tensor:
    """Ban text in rows where all timestamps together are likelier than any token of text.

    Args:
        scores: [B, V].
        first_timestamp: Tokens from here on are timestamps.

    Returns:
        [B, V].
    """
    log_probabilities = scores.float().log_softmax(-1)
    times = log_probabilities[:, first_timestamp:].logsumexp(-1, keepdim=True)
    text = log_probabilities[:, :first_timestamp].amax(-1, keepdim=True)
    tokens = torch.arange(scores.shape[-1], dtype=torch.int64, device=scores.device)
    return scores.masked_fill((times > text) & (tokens < first_timestamp), -torch.inf)


class WhisperTimeStampLogitsProcessor(LogitsProcessor):
    """Generates timestamps in pairs that do not decrease, as Whisper was trained to."""

    def __init__(
        self,
        generate_config: Any,
        begin_index: int | None = None,
        _detect_timestamp_from_logprob: bool | None = None,
    ) -> None:
        """Read the token ids.

        Args:
            generate_config: A `GenerationConfig` that has ``no_timestamps_token_id``, after which
                the timestamps begin, and ``eos_token_id``, below which all is text; it may have
                ``max_initial_timestamp_index``, the largest step of the first timestamp.
            begin_index: Length of the sequence at which the first token is generated.
            _detect_timestamp_from_logprob: Whether to ban text where all timestamps together are
                likelier (`prefer_timestamps`); None is what the configuration says, else yes.

        Raises:
            InvalidRequestError: One of them is missing or of the wrong kind.
        """
        marker = getattr(generate_config, "no_timestamps_token_id", None)
        self.no_timestamps_token_id = check_count("no_timestamps_token_id", marker, least=0)
        self.timestamp_begin = self.no_timestamps_token_id + 1
        eos = getattr(generate_config, "eos_token_id", None)
        self.eos_token_id = check_count("eos_token_id", eos, least=0)
        self.begin_index = check_count("begin_index", begin_index, least=0)
        self.max_initial_timestamp_index = getattr(
            generate_config, "max_initial_timestamp_index", None
        )
        if _detect_timestamp_from_logprob is None:
            name = "_detect_timestamp_from_logprob"
            _detect_timestamp_from_logprob = getattr(generate_config, name, True)
        self._detect_timestamp_from_logprob = _detect_timestamp_from_logprob

    def set_begin_index(self, begin_index: int) -> None:
        """Change the length at which the first token is generated."""
        self.begin_index = check_count("begin_index", begin_index, least=0)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Ban what Whisper's format does not allow; ids are int64 [B, T], scores [B, V]."""
        first = self.timestamp_begin
        scores = scores.index_fill(
            -1,
            torch.tensor([self.no_timestamps_token_id], dtype=torch.int64, device=scores.device),
            -torch.inf,
        )
        generated = input_ids[:, self.begin_index :]
        scores = allow_timestamps(scores, generated, first, self.eos_token_id)
        if input_ids.shape[1] == self.begin_index:
            tokens = torch.arange(scores.shape[-1], dtype=torch.int64, device=scores.device)
            banned = tokens < first
            if self.max_initial_timestamp_index is not None:
                banned |= tokens > first + self.max_initial_timestamp_index
            scores = scores.masked_fill(banned, -torch.inf)
        if self._detect_timestamp_from_logprob:
            scores = prefer_timestamps(scores, first)
        return scores
