"""The settings as a table: what can be chosen, what it is called, and who uses it.

Ranges are those of the library's own table; a row narrows one where a widget has to end somewhere.
Rows only; what is sent to the model for them is decided in ``settings``. Knows no widgets.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from asyncgen import STREAM_PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Mapping


Values: TypeAlias = dict[str, Any]
"""What stands in the panel, by name of the field."""

Kind: TypeAlias = Literal["slider", "integer", "number", "lines", "flag", "choice"]

STRATEGIES = {
    "sampling": "Sampling",
    "greedy": "Greedy: the most probable token",
    "beams": "Beam search",
    "beam_sample": "Beam search, sampled",
    "diverse": "Diverse beam search",
    "contrastive": "Contrastive search",
    "lookup": "Assisted: prompt lookup",
    "early_exit": "Assisted: the model's own first layers",
    "assistant": "Assisted: a draft model",
    "dola": "DoLa: contrast of layers",
}
AIDED = frozenset({"lookup", "early_exit", "assistant", "dola"})
"""Strategies that draw at random, or take the most probable token."""


_FINITE = STREAM_PARAMETERS["guidance_scale"].range
"""Any number: the rule of parameters that the library checks where it uses them."""


def draws(values: Mapping[str, Any]) -> bool:
    """Tell whether tokens are sampled at random."""
    strategy = values["strategy"]
    return strategy in ("sampling", "beam_sample") or (strategy in AIDED and values["draw"] is True)


@dataclass(frozen=True, slots=True)
class Field:
    """One thing that can be chosen.

    Attributes:
        name: Its key, and the parameter of ``AsyncLLM.stream`` unless ``parameter`` names another.
        kind: Kind of widget.
        group: The heading that it stands under.
        neutral: Value that applies, and is shown, if the model gives no default.
        low: Smallest value, where that is not the smallest of the parameter.
        high: Largest value, where that is not the largest of the parameter.
        step: Distance of two values.
        info: One line of help.
        only: The strategies that use it; ``None`` means all.
        parameter: Its name in ``AsyncLLM.stream``, where that differs; empty where what is sent
            depends on more than this field.
        choices: The values of a choice, and what each is called.
        label: Label on the screen, where that is not the name of the parameter.
    """

    name: str
    kind: Kind
    group: str = ""
    neutral: Any = None
    low: float | None = None
    high: float | None = None
    step: float | None = None
    info: str = ""
    only: frozenset[str] | None = None
    parameter: str | None = None
    choices: Mapping[str, str] = field(default_factory=dict)
    label: str = ""

    @property
    def title(self) -> str:
        """What it is called on the screen and in errors."""
        return self.label or self.parameter or self.name

    @property
    def range(self) -> Any:
        """The rule of a number: that of the parameter, with the limits of this field."""
        row = STREAM_PARAMETERS.get(self.parameter or self.name)
        found: Any = _FINITE if row is None or row.range is None else row.range
        limits: dict[str, Any] = {"whole": self.kind == "integer"}
        if self.low is not None:
            limits |= {"low": self.low, "above": False}
        if self.high is not None:
            limits |= {"high": self.high, "below": False}
        return replace(found, **limits)

    def used_by(self, values: Mapping[str, Any]) -> bool:
        """Tell whether the field has an effect with the other values of the panel."""
        if self.group == SAMPLING and not draws(values):
            return False
        return self.only is None or values["strategy"] in self.only


def _only(*strategies: str) -> frozenset[str]:
    return frozenset(strategies)


GROUPS = ("", "Sampling", "Repetition", "Length", "More")
SAMPLING, REPETITION, LENGTH, MORE = GROUPS[1:]

_BEAMS = _only("beams", "beam_sample", "diverse")
_DRAFTED = _only("early_exit", "assistant")
_PROMPTED = frozenset(STRATEGIES) - _DRAFTED
"""Strategies whose every step knows the prompt; a draft model does not."""

_DECAY = "exponential_decay_length_penalty"

_STRATEGY = (
    Field("num_beams", "integer", "", 4, 2, 16, 1, "Answers that are followed side by side.",
          _BEAMS),
    Field("num_beam_groups", "integer", "", 2, 2, 16, 1,
          "Groups that the beams are shared out to, evenly.", _only("diverse")),
    Field("diversity_penalty", "slider", "", 1.0, 0.1, 5, 0.1,
          "Taken off a token that another group has taken.", _only("diverse")),
    Field("length_penalty", "slider", "", 1.0, -2, 4, 0.1,
          "Above 0 favours long answers, below 0 short ones.", _BEAMS),
    Field("early_stopping", "choice", "", "unlikely", info="When the search ends.", only=_BEAMS,
          choices={
              "unlikely": "False: when better is unlikely",
              "enough": "True: with as many answers as beams",
              "impossible": "never: when better is impossible",
          }),
    Field("required_words", "lines", "", "", info="Words that must appear, one a line.",
          only=_only("beams"), parameter="", label="force_words_ids"),
    Field("penalty_alpha", "slider", "", 0.6, 0.05, 1, 0.05,
          "How much likeness to what is there already counts against a token.",
          _only("contrastive")),
    Field("contrastive_k", "integer", "", 4, 2, 64, 1, "Tokens that are compared at each step.",
          _only("contrastive"), parameter="top_k"),
    Field("prompt_lookup_num_tokens", "integer", "", 5, 1, 64, 1,
          "Tokens that are copied from the prompt at a time.", _only("lookup")),
    Field("max_matching_ngram_size", "integer", "", 2, 1, 32, 1,
          "Longest run of tokens that is looked up.", _only("lookup")),
    Field("assistant_early_exit", "integer", "", 1, 1, 128, 1,
          "Layers that draft.", _only("early_exit")),
    Field("num_assistant_tokens", "integer", "", 20, 1, 64, 1,
          "Tokens that are drafted at a time.", _DRAFTED),
    Field("num_assistant_tokens_schedule", "choice", "", "constant",
          info="How that number changes.", only=_DRAFTED,
          choices={
              "constant": "constant: stays",
              "heuristic": "heuristic: follows success",
              "heuristic_transient": "heuristic_transient: the same, within an answer",
          }),
    Field("assistant_confidence_threshold", "slider", "", 0.4, 0, 1, 0.05,
          "Drafting pauses where the draft is less sure than this.", _DRAFTED),
    Field("dola_layers", "choice", "", "low", info="Layers that the last one is compared with.",
          only=_only("dola"), choices={"low": "low: lower half", "high": "high: upper half"}),
    Field("draw", "flag", "", False, info="Draw tokens at random.", only=AIDED,
          parameter="do_sample"),
)  # fmt: skip
"""What makes a strategy."""

_ANSWER = (
    Field("max_new_tokens", "integer", "", None, step=1,
          info="Most tokens of an answer; empty: to the end of the context."),
    Field("seed", "integer", "", None, 0, 2**53 - 1, 1,
          "Same seed, same answer; empty: another one each time."),
    Field("stop", "lines", info="Texts, one a line; the answer ends before the first of them."),
)  # fmt: skip

_DRAWN = (
    Field("temperature", "slider", SAMPLING, 1.0, None, 2, 0.05,
          "Low is sober, high is wild; 0 takes the most probable token."),
    Field("top_p", "slider", SAMPLING, 1.0, step=0.01,
          info="Only the likeliest tokens, up to this probability together; 1 is off."),
    Field("top_k", "integer", SAMPLING, 50, step=1,
          info="Only so many of the likeliest tokens; 0 is off."),
    Field("min_p", "slider", SAMPLING, 0.0, step=0.01,
          info="Least probability of a token, as a share of the likeliest one's; 0 is off."),
    Field("typical_p", "slider", SAMPLING, 1.0, step=0.01,
          info="Only the most typical tokens, up to this probability together; 1 is off."),
    Field("top_h", "slider", SAMPLING, 1.0, step=0.01,
          info="Only the likeliest tokens, up to this share of the entropy; 1 is off."),
    Field("epsilon_cutoff", "slider", SAMPLING, 0.0, None, 0.1, 0.0005,
          "Least probability of a token; 0 is off."),
    Field("eta_cutoff", "slider", SAMPLING, 0.0, None, 0.1, 0.0005,
          "The same, lower where much is possible; 0 is off."),
)  # fmt: skip

_REPEATED = (
    Field("repetition_penalty", "slider", REPETITION, 1.0, 0.5, 2, 0.01,
          "Above 1 avoids the tokens that are there already."),
    Field("presence_penalty", "slider", REPETITION, 0.0, step=0.05,
          info="Taken off every token that the answer has already."),
    Field("frequency_penalty", "slider", REPETITION, 0.0, step=0.05,
          info="The same, for each time that it has it."),
    Field("no_repeat_ngram_size", "integer", REPETITION, 0, step=1,
          info="No run of so many tokens comes twice; 0 is off."),
    Field("encoder_repetition_penalty", "slider", REPETITION, 1.0, 0.5, 2, 0.01,
          "Above 1 favours the tokens of the prompt.", _PROMPTED),
    Field("encoder_no_repeat_ngram_size", "integer", REPETITION, 0, step=1, only=_PROMPTED,
          info="No run of so many tokens of the prompt comes again; 0 is off."),
    Field("banned_words", "lines", REPETITION, "", info="Words that are never used, one a line.",
          only=frozenset(STRATEGIES) - {"dola"}, parameter="", label="bad_words_ids"),
)  # fmt: skip

_LONG = (
    Field("min_new_tokens", "integer", LENGTH, step=1, info="Least tokens of an answer."),
    Field("max_time", "number", LENGTH, step=0.1, info="Most seconds of an answer."),
    Field("decay_start", "integer", LENGTH, 0, 0, None, 1,
          "Tokens after which the end becomes more probable.", parameter="",
          label=f"{_DECAY}: start"),
    Field("decay_factor", "slider", LENGTH, 1.0, 1, 1.5, 0.01,
          "Factor by which it does so with each token; 1 is off.", parameter="",
          label=f"{_DECAY}: factor"),
)  # fmt: skip

_OTHER = (
    Field("guidance_scale", "slider", MORE, 1.0, 1, 5, 0.1,
          "Above 1 keeps closer to the prompt.", frozenset(STRATEGIES) - {"diverse"}),
    Field("renormalize_logits", "flag", MORE, False,
          info="Probabilities add up to 1 again after all changes to them."),
    Field("watermark", "flag", MORE, False, info="Mark the answer, so that it can be detected.",
          parameter="", label="watermarking_config"),
    Field("top_logprobs", "integer", MORE, 5, None, 20, 1,
          "Alternatives in the probabilities view; 0 records no probabilities."),
)  # fmt: skip

FIELDS = (
    Field("system", "lines", info="Who the model is to be.", parameter="", label="System prompt"),
    Field("strategy", "choice", info="How each token is found.", parameter="",
          label="Strategy", choices=STRATEGIES),
    *_STRATEGY, *_ANSWER, *_DRAWN, *_REPEATED, *_LONG, *_OTHER,
)  # fmt: skip
"""All fields, in the order of the panel."""
