"""Build the parameters of a request that resumes behind tokens generated elsewhere.

Random draws are a function of seed, position and token. An engine that gets the seed and the
tokens so far therefore continues as the first engine would have. Every failover uses this module:
the WebSocket server, its client, and the engines behind Ray. Knows plain values; no engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LEAST_SECONDS = 0.001
"""Rest of a `max_time` that is over: the engine takes only times above 0, and ends at once."""


def count_samples(params: Mapping[str, Any]) -> int:
    """Return the number of samples that a request asks for; 1 if the value is not a number."""
    asked = params.get("num_return_sequences") or params.get("n") or 1
    return max(asked, 1) if isinstance(asked, int) else 1


def given_ids(params: Mapping[str, Any], num_samples: int) -> list[list[int]]:
    """Return the ``generated_ids`` that a request came with, one list a sample.

    Values of another form give empty lists: the engine refuses them and names the parameter.
    """
    value: Any = params.get("generated_ids")
    is_nested = isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple)
    rows: Sequence[Any] = value if is_nested else [value]
    found = [list(row) if isinstance(row, list | tuple) else [] for row in rows]
    return [*found, *([] for _ in range(num_samples))][:num_samples]


def resumed_params(
    params: Mapping[str, Any],
    generated_ids: Sequence[Sequence[int]],
    *,
    seed: int | None = None,
    elapsed: float = 0.0,
) -> dict[str, Any]:
    """Return the parameters by which an engine resumes a request; the caller adds a fingerprint.

    Args:
        params: Parameters of the request when it began.
        generated_ids: Tokens that each sample generated since, one list a sample.
        seed: Seed of its random draws; ``None`` keeps that of ``params``.
        elapsed: Seconds since it began, taken from its ``max_time``.
    """
    resumed = dict(params)
    if seed is not None:
        resumed["seed"] = seed
    limit = params.get("max_time")
    if elapsed and isinstance(limit, int | float):
        resumed["max_time"] = max(limit - elapsed, LEAST_SECONDS)
    if any(generated_ids):
        given = given_ids(params, len(generated_ids))
        rows = [[*first, *more] for first, more in zip(given, generated_ids, strict=True)]
        resumed["generated_ids"] = rows if len(rows) > 1 else rows[0]
        resumed.pop("prompt_logprobs", None)  # the client got them before the first token
    return resumed


class RepeatedOutput:
    """Output of one sample that a restarted request generates again, to be dropped.

    Requests that cannot resume behind tokens start over with the same seed.
    """

    def __init__(self, token_ids: Sequence[int], num_characters: int) -> None:
        """Keep what the reader received before the restart.

        Args:
            token_ids: Token ids.
            num_characters: Length of the text.
        """
        self._token_ids = list(token_ids)
        self._num_characters = num_characters

    def __bool__(self) -> bool:
        """Return whether a part of it did not come again yet."""
        return bool(self._token_ids or self._num_characters)

    def drop(self, token_ids: Sequence[int], text: str) -> tuple[int, int] | None:
        """Count the ids and characters of the next event that the reader has already.

        Returns:
            Both counts; ``None`` if the ids differ from those received before.
        """
        num_ids = min(len(self._token_ids), len(token_ids))
        if self._token_ids[:num_ids] != list(token_ids[:num_ids]):
            return None
        num_characters = min(self._num_characters, len(text))
        del self._token_ids[:num_ids]
        self._num_characters -= num_characters
        return num_ids, num_characters
