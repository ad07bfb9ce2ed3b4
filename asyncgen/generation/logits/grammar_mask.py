"""Allow only the tokens of a grammar, for structured output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from asyncgen import native
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.base import Definition, LogitsProcessor, Stage
from asyncgen.runtime.request_failure import request_failure
from asyncgen.runtime.transfer import host_ints, host_range, to_device
from asyncgen.structured.grammar_compiler import compile_grammar
from asyncgen.structured.output_format import PARAMETERS, read_output_format

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from asyncgen.generation.logits.base import BuildContext
    from asyncgen.generation.logits.batched import BatchScores, RowProcessor
    from asyncgen.structured.grammar import Grammar, Matcher


def _table() -> Tensor:
    """For each byte of a mask eight bytes as one int64: 1 where its bit is not set."""
    bits = host_range(256)[:, None] >> host_range(8) & 1
    return (1 - bits).to(torch.uint8).view(torch.int64)[:, 0]


def unpack_mask(words: Tensor, size: int) -> Tensor:
    """Unpack masks.

    Args:
        words: int32 [R, W], contiguous, on the CPU: a bit for each allowed token.
        size: V, at most 32 * W.

    Returns:
        Bool [R, V], true for banned tokens.
    """
    places = words.view(torch.uint8).to(torch.int32).flatten()
    flags = _table().index_select(0, places).view(torch.bool)
    return flags.view(len(words), -1)[:, :size]


def ban(scores: Tensor, words: Tensor, places: Tensor) -> None:
    """Ban tokens of some rows, in place.

    Args:
        scores: float32 [R, V], contiguous.
        words: int32 [M, W] on the CPU, contiguous: a bit for each allowed token.
        places: int64 [M] on the CPU: whose they are, by the numbers of rows.
    """
    if native.kernels is not None and scores.is_cpu:
        native.kernels.ban(scores, words, places)
        return
    banned = to_device(unpack_mask(words, scores.shape[1]), scores.device)
    if len(places) == len(scores):  # all of them, in their order
        scores.masked_fill_(banned, -torch.inf)
        return
    for place, own in zip(places.tolist(), banned, strict=True):
        scores[place].masked_fill_(own, -torch.inf)


class _BatchedGrammars:
    """Bans what the grammars of several rows do not allow, in place; one mask for all of them.

    Rows without a grammar cost nothing. A row whose format has not begun is not changed.
    """

    def __init__(self, parts: list[RowProcessor], scores: BatchScores) -> None:
        num_words = parts[0].processor.grammar.num_words
        self._words = torch.full((len(parts), num_words), -1, dtype=torch.int32, device="cpu")

        # Where another processor has worked before, it may have banned all that is allowed.
        def is_crowded(part: RowProcessor) -> bool:
            return scores.rows[part.row].processors[0] is not part.processor

        parts = sorted(parts, key=is_crowded)  # which keeps the order of rows otherwise
        self._matched = [
            (part.row, part.processor.matcher(0), part.processor.prompt_length, words)
            for part, words in zip(parts, self._words, strict=True)
        ]
        self._crowded = [part.row for part in parts if is_crowded(part)]
        self._plain = host_ints([part.row for part in parts if not is_crowded(part)])

    def __call__(self, scores: BatchScores) -> None:
        """Follow each row, and ban what its grammar does not allow."""
        rows, failures = scores.rows, scores.failures
        for row, matcher, prompt_length, words in self._matched:
            try:
                matcher.extend(rows[row].tokens, prompt_length)
                matcher.fill(words)
            except BaseException as error:
                failures.setdefault(row, request_failure(error))
        count = len(self._plain)
        if count:
            ban(scores.values, self._words[:count], self._plain)
        if self._crowded:
            banned = to_device(unpack_mask(self._words[count:], scores.size), scores.values.device)
            for row, own in zip(self._crowded, banned, strict=True):
                scores.values[row] = within(scores.values[row : row + 1], own[None])[0]


def within(scores: Tensor, banned: Tensor) -> Tensor:
    """Ban tokens; of a row where all others were banned before, those are equally likely.

    Args:
        scores: [B, V].
        banned: Bool, of the same shape.
    """
    masked = scores.masked_fill(banned, -torch.inf)
    stuck = masked.amax(-1, keepdim=True).isneginf()  # NaN where there is any
    return torch.where(stuck & ~banned, 0.0, masked)


def _build(kind: Any, grammar: Grammar, setting: BuildContext) -> Any:
    eos = () if setting.eos_token_ids is None else setting.eos_token_ids.tolist()
    return kind(grammar, eos, prompt_length=setting.prompt_length)


class GrammarLogitsProcessor(LogitsProcessor):
    """Bans every token that the grammar of an answer does not allow.

    The end-of-sequence ids are allowed only where the answer is complete. Text that the grammar
    forces is tokenised as the tokenizer would; its next token is then the only one allowed, even
    if another processor has banned it.

    Example:
        ```python
        grammar = GrammarLogitsProcessor.of(model, tokenizer, json_schema=schema)
        model.generate(**inputs, logits_processor=[grammar], max_new_tokens=200)
        ```

    Attributes:
        grammar: The compiled grammar.
        prompt_length: Tokens of a row that are its prompt, padding included; ``None`` until the
            first call, if it was not given.
    """

    definition = Definition(
        Stage.PROCESSOR,
        200,
        "grammar",
        build=_build,
        batched=_BatchedGrammars,
        for_sample=lambda own, _: own.fresh(),
    )

    def __init__(
        self,
        grammar: Grammar,
        eos_token_ids: Iterable[int] = (),
        *,
        prompt_length: int | None = None,
    ) -> None:
        """Begin before the first token.

        Args:
            grammar: The compiled grammar.
            eos_token_ids: Ids that end a row.
            prompt_length: Tokens of a row that are its prompt; ``None`` takes the length of the
                first call.
        """
        self.grammar = grammar
        self.prompt_length = prompt_length
        self._eos = frozenset(eos_token_ids)
        self._matchers: list[Matcher] = []

    @classmethod
    def of(cls, model: Any, tokenizer: Any, **output_format: Any) -> Self:
        """Compile a grammar for one call of ``model.generate``.

        Args:
            model: A model of this library; its generation config has the end-of-sequence ids.
            tokenizer: Its tokenizer.
            **output_format: One of ``json_schema``, ``json_object``, ``response_model``, ``regex``,
                ``grammar`` and ``choice``, as of a stream.

        Raises:
            InvalidRequestError: Another name, none or several, or a format that cannot be
                compiled.
        """
        unknown = next((name for name in output_format if name not in PARAMETERS), None)
        if unknown is not None:
            raise InvalidRequestError(
                unknown, output_format[unknown], f"one of {', '.join(PARAMETERS)}"
            )
        read = read_output_format(output_format)
        if read is None:
            raise InvalidRequestError("output_format", None, f"one of {', '.join(PARAMETERS)}")
        eos = model.generation_config.eos_token_id
        ids = [] if eos is None else [eos] if isinstance(eos, int) else eos
        return cls(compile_grammar(read, tokenizer, model.config.vocab_size), ids)

    def fresh(self) -> Self:
        """Return one at its beginning, for another sample."""
        return type(self)(self.grammar, self._eos, prompt_length=self.prompt_length)

    def matcher(self, row: int) -> Matcher:
        """Return the matcher of a row, made when it is first asked for."""
        while len(self._matchers) <= row:
            self._matchers.append(self.grammar.matcher(self._eos))
        return self._matchers[row]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Ban what is not allowed; ids are int64 [B, T], scores [B, V].

        Raises:
            InvalidRequestError: The grammar has become too complex to go on.
        """
        if self.prompt_length is None:
            self.prompt_length = input_ids.shape[1]
        size = scores.shape[1]
        words = torch.empty(len(scores), self.grammar.num_words, dtype=torch.int32, device="cpu")
        for row, ids in enumerate(input_ids[:, self.prompt_length :].tolist()):
            matcher = self.matcher(row)
            matcher.follow(ids)
            matcher.fill(words[row])
        return within(scores, unpack_mask(words, size).to(scores.device))
