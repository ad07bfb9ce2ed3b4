"""The documented generators of candidates: what drafts one proposal after another, called by hand.

For code that runs its own loop of assisted generation. Each is one of the drafters here with the
calls of the reference: candidates are the ids so far and the guesses behind them.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final, cast

import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.encoder_decoder import EncoderDecoderCache
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.parameters import DEFAULTS, DRAFTING
from asyncgen.generation.generate.defaults import resolve_config
from asyncgen.generation.generate.plan_parts import make_plan, make_processors
from asyncgen.generation.logits.bans import token_list
from asyncgen.generation.logits.base import LogitsProcessorList
from asyncgen.generation.logits.build import eos_ids
from asyncgen.generation.logits.lengths import MinLengthLogitsProcessor
from asyncgen.generation.stopping.criteria import StoppingCriteriaList
from asyncgen.generation.stopping.stop_checks import StopChecks
from asyncgen.generation.strategies.drafters.assistant import (
    AssistantDrafter,
    AssistantForward,
    ExitForward,
)
from asyncgen.generation.strategies.drafters.drafter import (
    ConfidenceThreshold,
    DraftSchedule,
    check_count,
    common_prefix_length,
)
from asyncgen.generation.strategies.drafters.lookup import LookupDrafter, continuations
from asyncgen.generation.strategies.step import EncoderInput
from asyncgen.generation.strategies.token_by_token import multinomial_draw

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from asyncgen.generation.config import GenerationConfig
    from asyncgen.generation.strategies.step import Drafting, Plan, Proposal

_WITHOUT_EFFECT: Final = (
    "past_key_values",
    "encoder_outputs",
    "use_cache",
    "cache_position",
    "logits_to_keep",
)
"""Arguments of the deciding model that a draft model computes for itself."""


class CandidateGenerator:
    """Base of what proposes candidates, sequences that the deciding model checks.

    Attributes:
        requires_model_outputs: True if candidates are made of what the deciding model computed.
    """

    requires_model_outputs = False

    def get_candidates(self, input_ids: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Propose what comes next.

        Args:
            input_ids: The ids so far, int64 ``[1, T]``.
            **kwargs: What a class needs beside them; those here need nothing.

        Returns:
            The ids so far and n guesses behind them, int64 ``[1, T + n]``, and the processed scores
            that each guess was taken from, float32 ``[1, n, V]``; ``None`` if there are none.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `get_candidates`; write one")

    def update_candidate_strategy(
        self, input_ids: Tensor, scores: Tensor | None, num_matches: int
    ) -> None:
        """Learn how many of the first guesses of the last proposal were right.

        Args:
            input_ids: The ids so far, int64 ``[1, T]``.
            scores: Scores of the deciding model at each guess and behind the last, ``[1, n + 1,
                V]``; ``None``: those of the last proposal.
            num_matches: How many were right.
        """


class PromptLookupCandidateGenerator(CandidateGenerator):
    """Proposes what followed the last tokens where they stood before; see `LookupDrafter`."""

    def __init__(
        self,
        eos_token_id: Tensor | Sequence[int] | int | None = None,
        num_output_tokens: int = 10,
        max_matching_ngram_size: int = 2,
        max_length: int = 20,
        logits_processor: LogitsProcessorList | None = None,
        vocab_size: int | None = None,
    ) -> None:
        """Begin without a sequence.

        Args:
            eos_token_id: Ids that end the text; candidates end before them.
            num_output_tokens: Most tokens of a proposal.
            max_matching_ngram_size: Most last tokens that must stand earlier.
            max_length: Tokens of the whole text: nothing is proposed where one more is left, nor
                what stands behind so many.
            logits_processor: Tokens that it forbids are not proposed.
            vocab_size: Size of the scores for that, V.

        Raises:
            InvalidRequestError: A number is below 1, or there are processors and no size.
            TypeError: The ids that end the text are none.
        """
        check_count("num_output_tokens", num_output_tokens)
        check_count("max_matching_ngram_size", max_matching_ngram_size)
        check_count("max_length", max_length)
        if vocab_size is not None:
            check_count("vocab_size", vocab_size)
        if eos_token_id is not None:
            token_list(eos_token_id)
        if logits_processor and vocab_size is None:
            allowed = "the size of the scores, which `logits_processor` needs"
            raise InvalidRequestError("vocab_size", None, allowed)
        self.eos_token_id = eos_token_id
        self.num_output_tokens = num_output_tokens
        self.max_matching_ngram_size = max_matching_ngram_size
        self.max_length = max_length
        self.logits_processor = logits_processor
        self.vocab_size = vocab_size
        self._drafter: LookupDrafter | None = None

    def get_candidates(self, input_ids: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """See `CandidateGenerator`; scores are always ``None``."""
        length = _check_row(input_ids)
        if self.max_length == length + 1:
            return input_ids, None
        if self.logits_processor or self.max_length < length:
            found = self._allowed(input_ids)
        else:
            found = _drained(self._continued(input_ids).propose(input_ids, length)).token_ids
        if self.eos_token_id is not None:
            ends = torch.as_tensor(
                self.eos_token_id, dtype=torch.int64, device=found.device
            ).flatten()
            stop = torch.isin(found, ends).nonzero()
            found = found[: int(stop[0])] if len(stop) else found
        return torch.cat((input_ids, found[None].to(input_ids)), dim=1), None

    def _continued(self, input_ids: Tensor) -> LookupDrafter:
        """Return a drafter that has read nothing but a beginning of these ids."""
        if self._drafter is None or not self._drafter.has_read_beginning_of(input_ids):
            self._drafter = LookupDrafter(self.num_output_tokens, self.max_matching_ngram_size)
        return self._drafter

    def _allowed(self, input_ids: Tensor) -> Tensor:
        """Return the first continuation, as far as no processor forbids it, int64 ``[n]``."""
        ids = input_ids[0].tolist()
        last = min(len(ids), self.max_length)
        for found in continuations(ids, self.max_matching_ngram_size, self.num_output_tokens, last):
            allowed = self._count_allowed(input_ids, found)
            if allowed:
                return input_ids.new_tensor(found[:allowed])
        return input_ids.new_empty(0)

    def _count_allowed(self, input_ids: Tensor, found: list[int]) -> int:
        """Count the first tokens that the processors do not forbid."""
        if not self.logits_processor or self.vocab_size is None:
            return len(found)
        whole = torch.cat((input_ids, input_ids.new_tensor([found])), dim=1)
        for place, token_id in enumerate(found):
            scores = torch.ones(1, self.vocab_size, dtype=torch.float32, device=input_ids.device)
            before = whole[:, : input_ids.shape[1] + place]
            score = float(self.logits_processor(before, scores)[0, token_id])
            if score <= torch.finfo(torch.float32).min:
                return place
        return len(found)


class AssistedCandidateGenerator(CandidateGenerator):
    """Proposes what a smaller model says; see `AssistantDrafter`.

    Attributes:
        assistant_model: The smaller model.
        generation_config: How it decodes: the deciding model's configuration, completed.
        assistant_generation_config: A copy of the smaller model's own, for what is learnt.
        logits_processor: Processors of its scores.
    """

    def __init__(
        self,
        input_ids: Tensor,
        assistant_model: Any,
        generation_config: GenerationConfig,
        model_kwargs: Mapping[str, Any],
        inputs_tensor: Tensor | None = None,
        logits_processor: LogitsProcessorList | None = None,
    ) -> None:
        """Prepare the smaller model; nothing is computed yet.

        Args:
            input_ids: Prompt, int64 ``[1, S]``.
            assistant_model: A model of this library.
            generation_config: The deciding model's. Lengths count from its first token.
            model_kwargs: Further arguments of the deciding model. Its ``attention_mask`` counts;
                cache, encoder output and the like are the smaller model's own.
            inputs_tensor: What an encoder reads, int64 ``[1, T]``, for a model that has one.
            logits_processor: Processors of the deciding model's scores; those of one class with
                one that the configuration makes take its place.

        Raises:
            InvalidRequestError: An argument that has no meaning here, or more than one row.
        """
        _check_row(input_ids)
        if not hasattr(assistant_model, "core"):
            name = type(assistant_model).__name__
            raise InvalidRequestError("assistant_model", name, "a model of this library")
        for name in model_kwargs.keys() - {"attention_mask", *_WITHOUT_EFFECT}:
            allowed = (
                f"there are `attention_mask` and, without effect, {', '.join(_WITHOUT_EFFECT)}"
            )
            raise InvalidRequestError("model_kwargs", name, allowed)
        self.assistant_model = assistant_model
        own = copy.deepcopy(assistant_model.generation_config)
        for name in DRAFTING:
            if getattr(own, name) is None:
                setattr(own, name, DEFAULTS[name])
        own.eos_token_id = generation_config.eos_token_id
        self.assistant_generation_config = own
        self.generation_config, _ = resolve_config(assistant_model, generation_config, {})
        self.logits_processor = LogitsProcessorList(
            each
            for each in logits_processor or ()
            if not isinstance(each, MinLengthLogitsProcessor)
        )
        mask = model_kwargs.get("attention_mask")
        self._drafter = self._make_drafter(input_ids, mask, inputs_tensor)
        self._read: list[int] = []

    @property
    def num_assistant_tokens(self) -> int:
        """Most tokens of the next proposal."""
        return self._drafter.schedule.count

    @num_assistant_tokens.setter
    def num_assistant_tokens(self, count: int) -> None:
        check_count("num_assistant_tokens", count)
        self._drafter.schedule.count = count

    @property
    def assistant_confidence_threshold(self) -> float:
        """Probability below which a guess is the last of its proposal."""
        return self._drafter.confidence.threshold

    def get_candidates(self, input_ids: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """See `CandidateGenerator`."""
        length, most = _check_row(input_ids), self.generation_config.max_length
        input_ids = input_ids.to(self.assistant_model.device)
        room = 1 << 30 if most is None else most - length - 1
        if room < 1:
            return input_ids, None
        ids = input_ids[0].tolist()
        self._drafter.crop(min(common_prefix_length(self._read, ids), length - 1))
        with torch.inference_mode():
            proposal = _drained(self._drafter.propose(input_ids, room))
        if not len(proposal.token_ids):
            return input_ids, None
        whole = torch.cat((input_ids, proposal.token_ids[None]), dim=1).clone()
        self._read = whole[0].tolist()
        return whole, torch.stack(self._drafter.scores, dim=1).clone()

    def update_candidate_strategy(
        self, input_ids: Tensor, scores: Tensor | None, num_matches: int
    ) -> None:
        """See `CandidateGenerator`. The length of a proposal and the confidence follow."""
        drafter, own = self._drafter, self.assistant_generation_config
        drafted = len(drafter.scores) if scores is None else scores.shape[1] - 1
        drafter.learn(int(num_matches), drafted)
        if own.num_assistant_tokens_schedule == "heuristic":
            own.num_assistant_tokens = drafter.schedule.count
        own.assistant_confidence_threshold = drafter.confidence.threshold

    def _make_drafter(
        self, input_ids: Tensor, mask: Tensor | None, inputs: Tensor | None
    ) -> AssistantDrafter:
        """Make the drafter, with a cache of its own."""
        model, config = self.assistant_model, self.generation_config
        own = self.assistant_generation_config
        encoder, cache = None, DynamicCache()
        if model.config.is_encoder_decoder:
            if inputs is None:
                allowed = "give what the encoder of the assistant reads"
                raise InvalidRequestError("inputs_tensor", None, allowed)
            encoder, mask = EncoderInput(inputs.to(model.device), _truth(mask, model)), None
            cache = cast("Any", EncoderDecoderCache(DynamicCache(), DynamicCache()))
        plan = make_plan(
            model,
            input_ids,
            config=config,
            stop_checks=StopChecks(StoppingCriteriaList()),
            attention_mask=mask,
            cache=cache,
            encoder=encoder,
            processors=LogitsProcessorList(),
            draw=multinomial_draw,
        )
        return AssistantDrafter(
            self._make_forward(plan),
            DraftSchedule(own.num_assistant_tokens or 1, own.num_assistant_tokens_schedule or ""),
            ConfidenceThreshold(own.assistant_confidence_threshold or 0.0),
            processors=self._make_processors(plan),
            draw=multinomial_draw if config.do_sample else None,
            eos_token_ids=eos_ids(config),
            position_limit=model.core.config.position_limit,
        )

    def _make_processors(self, plan: Plan) -> LogitsProcessorList:
        """Make the configuration's processors and those of the caller, which win."""
        config = copy.deepcopy(self.generation_config)
        config.guidance_scale = config.watermarking_config = None
        length = plan.input_ids.shape[1]
        made = make_processors(self.assistant_model, config, prompt_length=length, tail_only=True)
        theirs = {type(each) for each in self.logits_processor}
        kept = [each for each in made if type(each) not in theirs]
        return LogitsProcessorList([*kept, *self.logits_processor])

    def _make_forward(self, plan: Plan) -> AssistantForward:
        return AssistantForward(plan)


class EarlyExitCandidateGenerator(AssistedCandidateGenerator):
    """Proposes what the first layers of the deciding model say.

    The arguments are those of `AssistedCandidateGenerator`, with the deciding model as
    ``assistant_model``; ``generation_config.assistant_early_exit`` is the number of layers.
    """

    def _make_forward(self, plan: Plan) -> AssistantForward:
        depth, layers = self.generation_config.assistant_early_exit, plan.core.config
        if depth is None or not 1 <= depth <= layers.num_hidden_layers:
            allowed = f"must be a number of layers from 1 to {layers.num_hidden_layers}"
            raise InvalidRequestError("assistant_early_exit", depth, allowed)
        self.assistant_early_exit = depth
        return ExitForward(plan, depth)


def _check_row(input_ids: Tensor) -> int:
    """Return the length of the one row ``[1, T]``.

    Raises:
        InvalidRequestError: There are others.
    """
    if input_ids.dim() != 2 or len(input_ids) != 1 or not input_ids.shape[1]:
        allowed = "assisted generation takes one row of ids at a time, `[1, T]`"
        raise InvalidRequestError("input_ids", list(input_ids.shape), allowed)
    return input_ids.shape[1]


def _truth(mask: Tensor | None, model: Any) -> Tensor | None:
    return None if mask is None else mask.to(model.device).bool()


def _drained(drafting: Drafting) -> Proposal:
    """Run a proposal to its end."""
    while True:
        try:
            next(drafting)
        except StopIteration as end:
            return cast("Proposal", end.value)
