"""The settings as a table: what can be chosen, what it is called, its range, and who uses it.

Rows only; what is sent to the model for them is decided in ``settings``. Knows no widgets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

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


def draws(values: Mapping[str, Any]) -> bool:
    """Tell whether tokens are sampled at random."""
    strategy = values["strategy"]
    return strategy in ("sampling", "beam_sample") or (strategy in AIDED and values["draw"] is True)


@dataclass(frozen=True, slots=True)
class Field:
    """One thing that can be chosen.

    Attributes:
        name: Its key, and the parameter of ``AsyncLLM.stream`` unless ``parameter`` names another.
        label: Label on the screen.
        kind: Kind of widget.
        group: The heading that it stands under.
        neutral: Value that applies, and is shown, if the model gives no default.
        low: Smallest value.
        high: Largest value.
        step: Distance of two values.
        info: One line of help.
        only: The strategies that use it; ``None`` means all.
        parameter: Its name in ``AsyncLLM.stream``, where that differs; empty where what is sent
            depends on more than this field.
        choices: The values of a choice, and what each is called.
    """

    name: str
    label: str
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

_STRATEGY = (
    Field("num_beams", "Beams", "integer", "", 4, 2, 16, 1, only=_BEAMS),
    Field("num_beam_groups", "Groups", "integer", "", 2, 2, 16, 1,
          "Beams are shared out evenly.", _only("diverse")),
    Field("diversity_penalty", "Diversity penalty", "slider", "", 1.0, 0.1, 5, 0.1,
          "For a token that another group took.", _only("diverse")),
    Field("length_penalty", "Length penalty", "slider", "", 1.0, -2, 4, 0.1,
          "Above 0 favours long answers.", _BEAMS),
    Field("early_stopping", "The search ends", "choice", "", "unlikely", only=_BEAMS,
          choices={
              "unlikely": "when better is unlikely",
              "enough": "with as many answers as beams",
              "impossible": "when better is impossible",
          }),
    Field("required_words", "Words that must appear", "lines", "", "",
          info="One a line.", only=_only("beams"), parameter=""),
    Field("penalty_alpha", "Degeneration penalty", "slider", "", 0.6, 0.05, 1, 0.05,
          only=_only("contrastive")),
    Field("contrastive_k", "Candidates", "integer", "", 4, 2, 64, 1,
          only=_only("contrastive"), parameter="top_k"),
    Field("prompt_lookup_num_tokens", "Tokens looked up", "integer", "", 5, 1, 64, 1,
          only=_only("lookup")),
    Field("max_matching_ngram_size", "Longest run to match", "integer", "", 2, 1, 32, 1,
          "Tokens.", _only("lookup")),
    Field("assistant_early_exit", "Layers of the draft", "integer", "", 1, 1, 128, 1,
          only=_only("early_exit")),
    Field("num_assistant_tokens", "Drafted tokens", "integer", "", 20, 1, 64, 1, only=_DRAFTED),
    Field("num_assistant_tokens_schedule", "Their number", "choice", "", "constant", only=_DRAFTED,
          choices={
              "constant": "stays",
              "heuristic": "follows success",
              "heuristic_transient": "follows success, within an answer",
          }),
    Field("assistant_confidence_threshold", "Least confidence of the draft", "slider", "",
          0.4, 0, 1, 0.05, "Below it drafting pauses.", _DRAFTED),
    Field("dola_layers", "Layers", "choice", "", "low", only=_only("dola"),
          choices={"low": "lower half", "high": "upper half"}),
    Field("draw", "Draw at random", "flag", "", False, only=AIDED, parameter="do_sample"),
)  # fmt: skip
"""What makes a strategy."""

_ANSWER = (
    Field("max_new_tokens", "Longest answer", "integer", "", None, 1, None, 1,
          "Tokens; empty: to the end of the context."),
    Field("seed", "Seed", "integer", "", None, 0, 2**53 - 1, 1,
          "Same seed, same answer; empty: another one each time."),
    Field("stop", "Stop strings", "lines", info="One a line; the answer ends before it."),
)  # fmt: skip

_DRAWN = (
    Field("temperature", "Temperature", "slider", SAMPLING, 1.0, 0, 2, 0.05,
          "Low is sober, high is wild; 0 takes the most probable token."),
    Field("top_p", "Top p", "slider", SAMPLING, 1.0, 0.01, 1, 0.01,
          "The likeliest tokens up to this probability."),
    Field("top_k", "Top k", "integer", SAMPLING, 50, 0, None, 1,
          "So many of the likeliest; 0 is off."),
    Field("min_p", "Min p", "slider", SAMPLING, 0.0, 0, 1, 0.01,
          "Least probability, relative to the likeliest token."),
    Field("typical_p", "Typical p", "slider", SAMPLING, 1.0, 0.01, 1, 0.01,
          "The most typical tokens up to this probability."),
    Field("top_h", "Top h", "slider", SAMPLING, 1.0, 0.01, 1, 0.01,
          "The likeliest tokens up to this share of the entropy."),
    Field("epsilon_cutoff", "Epsilon cutoff", "slider", SAMPLING, 0.0, 0, 0.1, 0.0005,
          "Least probability of a token."),
    Field("eta_cutoff", "Eta cutoff", "slider", SAMPLING, 0.0, 0, 0.1, 0.0005,
          "The same, lower where much is possible."),
)  # fmt: skip

_REPEATED = (
    Field("repetition_penalty", "Repetition penalty", "slider", REPETITION, 1.0, 0.5, 2, 0.01,
          "Above 1 avoids what is there already."),
    Field("presence_penalty", "Presence penalty", "slider", REPETITION, 0.0, -2, 2, 0.05,
          "For every token that was written."),
    Field("frequency_penalty", "Frequency penalty", "slider", REPETITION, 0.0, -2, 2, 0.05,
          "The same, for each time."),
    Field("no_repeat_ngram_size", "No repeated run of", "integer", REPETITION, 0, 0, 64, 1,
          "Tokens; 0 is off."),
    Field("encoder_repetition_penalty", "Prompt penalty", "slider", REPETITION, 1.0, 0.5, 2, 0.01,
          "Above 1 favours the words of the prompt.", _PROMPTED),
    Field("encoder_no_repeat_ngram_size", "No run of the prompt of", "integer", REPETITION,
          0, 0, 64, 1, "Tokens; 0 is off.", _PROMPTED),
    Field("banned_words", "Words never used", "lines", REPETITION, "", info="One a line.",
          only=frozenset(STRATEGIES) - {"dola"}, parameter=""),
)  # fmt: skip

_LONG = (
    Field("min_new_tokens", "Shortest answer", "integer", LENGTH, None, 0, None, 1, "Tokens."),
    Field("max_time", "Longest time", "number", LENGTH, None, 0.1, None, 0.1, "Seconds."),
    Field("decay_factor", "Urge to end", "slider", LENGTH, 1.0, 1, 1.5, 0.01,
          "Grows by this factor with each token; 1 is off.", parameter=""),
    Field("decay_start", "Urge begins after", "integer", LENGTH, 0, 0, None, 1, "Tokens.",
          parameter=""),
)  # fmt: skip

_OTHER = (
    Field("guidance_scale", "Guidance scale", "slider", MORE, 1.0, 1, 5, 0.1,
          "Above 1 keeps closer to the prompt.", frozenset(STRATEGIES) - {"diverse"}),
    Field("renormalize_logits", "Renormalise probabilities", "flag", MORE, False),
    Field("watermark", "Watermark the answer", "flag", MORE, False, parameter=""),
    Field("top_logprobs", "Alternatives shown", "integer", MORE, 5, 0, 20, 1,
          "In the probabilities view; 0 records no probabilities."),
)  # fmt: skip

FIELDS = (
    Field("system", "System prompt", "lines", info="Who the model is to be.", parameter=""),
    Field("strategy", "Strategy", "choice", parameter="", choices=STRATEGIES),
    *_STRATEGY, *_ANSWER, *_DRAWN, *_REPEATED, *_LONG, *_OTHER,
)  # fmt: skip
"""All fields, in the order of the panel."""
