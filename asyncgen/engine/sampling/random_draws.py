"""Draw random tokens as a pure function of (seed, position, token), and of a stream number.

A token is drawn as argmax(scores + Gumbel noise) (Gumbel-max; Maddison, Tarlow and Minka 2014,
"A* Sampling", section 2). The noise of each candidate comes from an integer hash of the seed, the
position and the token id, so a draw depends on nothing else: not on other rows of a batch, not on
arrival order, not on where a request was interrupted and resumed.

`HashDraw` draws one row; `HashDraws` draws many, bit for bit the same. The noise of a token is two
logarithms in float64 of its hash. Over a whole vocabulary only an upper bound of each noisy score
is computed, in float32 and without a logarithm; the noise itself only where the bound is among the
highest. That is exact: see `_Bounds`. The largest of many scores are found through the maxima of
blocks, which is several times as fast and exact as well: a block whose maximum is too small holds
none of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asyncgen import native
from asyncgen.generation.strategies.token_by_token import require_finite
from asyncgen.runtime.transfer import host_ints, host_range, to_device

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "FIRST",
    "HashDraw",
    "HashDraws",
    "SECOND",
    "STEP",
    "argmax",
    "as_int64",
    "block_maxima",
    "draw_among",
    "gumbel_noise",
    "largest",
    "members",
    "mix64",
]


_MASK64 = (1 << 64) - 1
_UNIFORM = _MASK64
"""Row number of draws that are no token's; no request has so many rows."""

_CHANCE = _MASK64 - 1
"""Likewise, of draws that decide whether something is done to the scores of a row."""


def as_int64(value: int) -> int:
    """Return the int64 with the same 64 bits."""
    value &= _MASK64
    return value - (1 << 64) if value >> 63 else value


STEP, FIRST, SECOND = map(as_int64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""Constants of `mix64`, as int64."""
_MASK33, _MASK34, _MASK37, _MASK52 = ((1 << bits) - 1 for bits in (33, 34, 37, 52))


class HashDraw:
    """A :data:`~asyncgen.generation.strategies.step.Draw` whose noise is a hash."""

    def __init__(self, seed: int) -> None:
        """Set the seed.

        Args:
            seed: Any integer; taken modulo 2**64.
        """
        self.seed = seed & _MASK64

    def __call__(self, scores: Tensor, position: int, stream: int = 0) -> Tensor:
        """Draw one token a row.

        Args:
            scores: Processed scores, float32 ``[B, V]``; ``-inf`` for banned tokens.
            position: Absolute position of the token, prompt included.
            stream: Independent draws for one position have different numbers.

        Returns:
            Token ids, int64 ``[B]``.

        Raises:
            FloatingPointError: A row has a NaN score or no finite score at all.
        """
        return torch.stack(
            [self.draw_row(row, scores[row], position, stream) for row in range(len(scores))]
        )

    def successive(self, scores: Tensor, position: int) -> Tensor:
        """Draw for successive positions of row 0: scores float32 ``[S, V]`` to ids ``[S]``.

        Raises:
            FloatingPointError: A row has a NaN score or no finite score at all.
        """
        steps = range(len(scores))
        return torch.stack([self.draw_row(0, scores[i], position + i) for i in steps])

    def uniform(self, position: int, count: int, stream: int = 0) -> Tensor:
        """Draw float32 ``[count]`` from [0, 1), one a position, independent of all tokens."""
        keys = [mix64(self.seed, _UNIFORM, position + i, stream) for i in range(count)]
        # 24 bits are what a float32 below 1 can hold evenly.
        return torch.tensor(
            [(key >> 40) * 2.0**-24 for key in keys], dtype=torch.float32, device="cpu"
        )

    def chance(self, row: int, position: int) -> float:
        """Draw one number from [0, 1) for a position of a row, independent of all tokens."""
        return (mix64(self.seed, _CHANCE, row, position) >> 11) * 2.0**-53

    def several(self, scores: Tensor, count: int, position: int) -> Tensor:
        """Draw without replacement: the ``count`` highest of scores plus noise.

        That is an exact sample (Gumbel-top-k; Kool, van Hoof and Welling 2019, arXiv 1903.06059,
        section 2.3).

        Args:
            scores: float32 ``[B, M]``.
            count: How many to draw of each row.
            position: Absolute position of the token, prompt included.

        Returns:
            Indices, int64 ``[B, count]``, in the order in which they are drawn.

        Raises:
            FloatingPointError: A row has a NaN score or no finite score at all.
        """
        require_finite(scores.amax(dim=1), position)
        return torch.stack(
            [self._draw_several(row, each, count, position) for row, each in enumerate(scores)]
        )

    def _draw_several(self, row: int, scores: Tensor, count: int, position: int) -> Tensor:
        candidates = torch.nonzero(scores != -torch.inf).squeeze(1)
        if len(candidates) < count:
            candidates = torch.arange(len(scores), dtype=torch.int64, device=scores.device)
        noise = gumbel_noise(self.key(row, position), candidates)
        return candidates[torch.topk(scores[candidates] + noise, count).indices]

    def draw_row(self, row: int, scores: Tensor, position: int, stream: int = 0) -> Tensor:
        """Draw the token of one row.

        Args:
            row: Number of the row in its request, so that rows draw differently.
            scores: Processed scores, float32 ``[V]``.
            position: Absolute position of the token.
            stream: As in a call.

        Returns:
            Token id, int64 without dimensions.

        Raises:
            FloatingPointError: The row has a NaN score or no finite score at all.
        """
        # After top-k or top-p few candidates are left, and only those need noise. NaN stays in.
        candidates = torch.nonzero(scores != -torch.inf).squeeze(1)
        kept = scores[candidates]
        noisy = kept + gumbel_noise(self.key(row, position, stream), candidates)
        best, winner = (noisy if candidates.numel() else scores).max(dim=0)
        require_finite(best[None], position)
        return candidates[winner]

    def key(self, row: int, position: int, stream: int = 0) -> int:
        """Hash everything but the token, to a signed 64-bit number."""
        where = (row, position, stream) if stream else (row, position)
        mixed = mix64(self.seed, *where)
        return mixed - (1 << 64) if mixed >> 63 else mixed


def gumbel_noise(key: int | Tensor, token_ids: Tensor) -> Tensor:
    """Return standard Gumbel noise for each token id.

    Args:
        key: 64-bit hash of everything but the token; or several, int64 of a shape that
            broadcasts.
        token_ids: int64, any shape.

    Returns:
        float32 noise of the same shape.
    """
    # `mix64` on int64, whose products wrap as they must; masks make its shifts logical.
    bits = token_ids * STEP + (as_int64(key) if isinstance(key, int) else key)
    bits = (bits ^ (bits >> 30 & _MASK34)) * FIRST
    bits = (bits ^ (bits >> 27 & _MASK37)) * SECOND
    bits = bits ^ (bits >> 31 & _MASK33)
    # Near 1 a float32 could not tell -log(u) from zero; with 53 bits a float64 could round to 1.
    uniform = ((bits >> 12 & _MASK52).double() + 0.5) * 2.0**-52
    return (-torch.log(-torch.log(uniform))).float()


def mix64(*values: int) -> int:
    """Hash integers to 64 bits (the SplitMix64 step: Steele, Lea and Flood 2014, figure 17)."""
    state = 0
    for value in values:
        state = (state ^ (value & _MASK64)) + 0x9E3779B97F4A7C15 & _MASK64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK64
        state ^= state >> 31
    return state


_CHOSEN = 6
"""Blocks whose tokens get noise."""

_CHUNK = 2**17
"""Scores that are computed at a time, so that they stay in the CPU's cache."""


_ARGMAX_BLOCK = 128
_LARGEST_BLOCK = 32
_WORTH_IT = 16
"""Least blocks for each one that is searched; with fewer, all scores are searched."""
_FEW_SCORES = 1 << 15
"""Scores below which a search of all takes less time than a search of blocks."""


def block_maxima(scores: Tensor, block: int) -> Tensor:
    """Return the maximum of each whole block.

    Args:
        scores: [R, V]; NaN spoils the maximum of its block.
        block: Scores in a block, at most V.

    Returns:
        [R, V // block]; the last ``V % block`` scores are in none.
    """
    rows, size = scores.shape
    count = size // block
    return scores[:, : count * block].view(rows, count, block).amax(-1)


def members(chosen: Tensor, block: int, size: int) -> Tensor:
    """List the indices of some blocks, and of the rest that is in no block.

    Args:
        chosen: Block numbers, int64 [R, M].
        block: Scores in a block.
        size: V.

    Returns:
        Indices, int64 [R, M * block + V % block].
    """
    rows = chosen.shape[0]
    inside = torch.arange(block, dtype=torch.int64, device=chosen.device)
    index = (chosen[..., None] * block + inside).view(rows, -1)
    if not size % block:
        return index
    rest = torch.arange(size - size % block, size, dtype=torch.int64, device=chosen.device)
    return torch.cat((index, rest.expand(rows, -1)), dim=1)


def argmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Find the largest score of each row, and its first index.

    Args:
        scores: [R, V], of any floating dtype.

    Returns:
        Values, float32 [R], NaN where a row holds any, and indices, int64 [R].
    """
    rows, size = scores.shape
    if scores.device.type == "cpu" and native.supports(scores.dtype):
        assert native.kernels is not None
        best = torch.empty(rows, dtype=torch.float32, device="cpu")
        index = torch.empty(rows, dtype=torch.int64, device="cpu")
        native.kernels.argmax(scores.contiguous(), best, index)
        return best, index
    scores = scores.float()
    count, rest = divmod(size, _ARGMAX_BLOCK)
    if scores.device.type != "cpu" or not count or scores.numel() < _FEW_SCORES:
        best, index = scores.max(dim=-1)
        return best, index
    best, block = block_maxima(scores, _ARGMAX_BLOCK).max(dim=-1)
    blocks = scores[:, : size - rest].view(rows, count, _ARGMAX_BLOCK)
    offset = blocks[host_range(rows), block].argmax(-1)
    index = block.mul_(_ARGMAX_BLOCK).add_(offset)
    if rest:
        last, offset = scores[:, -rest:].max(dim=-1)
        wins = (last > best) | (last.isnan() & ~best.isnan())
        best, index = torch.where(wins, last, best), torch.where(wins, size - rest + offset, index)
    return best, index


def largest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest scores of each row, the largest first.

    Args:
        scores: [R, V].
        count: How many, at most V.

    Returns:
        Values [R, count] and indices, int64 [R, count]. Of scores that tie with the last one
        returned any may be among them.
    """
    size = scores.shape[1]
    if size < _LARGEST_BLOCK * _WORTH_IT * 2 or size // _LARGEST_BLOCK < 2 * count:
        best = scores.topk(count)
        return best.values, best.indices
    # At most count - 1 blocks have a maximum above the smallest of these, so nothing that is
    # larger than it lies elsewhere.
    chosen = block_maxima(scores, _LARGEST_BLOCK).topk(count, sorted=False).indices
    index = members(chosen, _LARGEST_BLOCK, size)
    best = scores.gather(1, index).topk(count)
    return best.values, index.gather(1, best.indices)


def draw_among(scores: Tensor, token_ids: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Draw from listed tokens; all others are banned.

    Args:
        scores: Processed scores of the listed tokens, float32 [R, N]; -inf for banned ones.
        token_ids: Ids of the listed tokens, int64 [R, N].
        keys: `HashDraw.key` of each row, int64 [R].

    Returns:
        Tokens, int64 [R], and their noisy scores [R]; a row without a token to draw has a score
        that is not finite.
    """
    noisy = scores + gumbel_noise(keys[:, None], token_ids)
    best = noisy.amax(-1)
    # Of equals the first one of the vocabulary.
    none = torch.iinfo(torch.int64).max
    return torch.where(noisy == best[:, None], token_ids, none).amin(-1), best


class HashDraws:
    """Draws from whole vocabularies, with buffers that are kept."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        """Make the buffers.

        Args:
            vocab_size: V of the scores.
            device: Device of the scores.
        """
        self._tokens = torch.arange(vocab_size, dtype=torch.int64, device=device)
        self._block = 64 if vocab_size >= 16384 else 32
        self._bounds: _Bounds | None = None
        if device.type == "cpu" and vocab_size // self._block >= 8 * _CHOSEN:
            self._bounds = _Bounds(self._tokens, max(_CHUNK // vocab_size, 1))

    def keys(self, draws: Iterable[tuple[HashDraw, int, int]]) -> Tensor:
        """Return the key of each row on the device, int64 [R].

        Args:
            draws: Source of the draws, number of the row in its request, and position.
        """
        keys = host_ints([draw.key(row, position) for draw, row, position in draws])
        device = self._tokens.device
        return keys if device.type == "cpu" else to_device(keys, device)

    def __call__(self, scores: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Draw one token a row.

        Args:
            scores: Processed scores, float32 [R, V]; -inf for banned tokens.
            keys: Key of each row, int64 [R].

        Returns:
            The same as `draw_among`.
        """
        if self._bounds is None:
            return draw_among(scores, self._tokens.expand_as(scores), keys)
        bounds, size = self._bounds, scores.shape[1]
        maxima = torch.cat(
            [
                block_maxima(bounds.above(some, own_keys), self._block)
                for some, own_keys in zip(
                    torch.split(scores, bounds.rows), torch.split(keys, bounds.rows), strict=True
                )
            ]
        )
        top = maxima.topk(_CHOSEN + 1)
        index = members(top.indices[:, :_CHOSEN], self._block, size)
        tokens, best = draw_among(scores.gather(1, index), index, keys)
        # NaN compares as false, so a row with NaN is drawn from all tokens, and keeps it.
        is_decided = top.values[:, _CHOSEN] < bounds.safely_below(best)
        for row in (~is_decided).nonzero()[:, 0].tolist():
            one = slice(row, row + 1)
            tokens[one], best[one] = draw_among(scores[one], self._tokens[None], keys[one])
        return tokens, best


class _Bounds:
    """Upper bounds of noisy scores, up to a constant, from the last product of the hash.

    With u the uniform number of a token, its noise -log(-log(u)) is at most -log(1 - u). The
    hash ends with ``x ^ (x >> 31)``, which leaves the 31 highest bits of x as they are, so that
    ``2**64 * (1 - u) > |x| - 2**33`` where x is negative as a signed number (u is above one
    half); elsewhere the noise is below log(2) and that of ``|x|`` above it. The logarithm to the
    base 2 of a positive float32 is at least its bits, read as an integer, over 2**23 less 127: the
    chord of a concave curve. A negative one, from a tiny x, has negative bits and gives a bound
    that is far too high, which is safe.
    """

    def __init__(self, tokens: Tensor, rows: int) -> None:
        """Make buffers for so many rows."""
        self.rows = rows
        self._products = tokens * STEP
        self._state = torch.empty(rows, len(tokens), dtype=torch.int64, device="cpu")
        self._shifted = torch.empty_like(self._state)
        self._floats = torch.empty(rows, len(tokens), dtype=torch.float32, device="cpu")
        self._bits = self._floats.view(torch.int32)
        self._logs = torch.empty_like(self._floats)

    _SLOPE = -math.log(2) * 2.0**-23
    _CONSTANT = math.log(2) * (64 + 127)

    def above(self, scores: Tensor, keys: Tensor) -> Tensor:
        """Return the bounds minus a constant, float32 [r, V]; the next call overwrites them."""
        count = len(scores)
        state, shifted = self._state[:count], self._shifted[:count]
        floats, bits, logs = self._floats[:count], self._bits[:count], self._logs[:count]
        torch.add(self._products, keys[:, None], out=state)
        for shift, factor in ((30, FIRST), (27, SECOND)):
            torch.bitwise_right_shift(state, shift, out=shifted)
            shifted.bitwise_and_((1 << (64 - shift)) - 1)
            state.bitwise_xor_(shifted).mul_(factor)
        # Twice 2**33: the rounding to float32 comes on top.
        floats.copy_(state).abs_().sub_(2.0**34)
        logs.copy_(bits)
        return torch.add(scores, logs, alpha=self._SLOPE, out=logs)

    def safely_below(self, best: Tensor) -> Tensor:
        """Return the limit below which the bound of a token, without the constant, cannot win.

        Every step from the hash to the bound rounds by at most 2**-23 of the numbers involved,
        which are below ``|best| + 300`` for any token that could win.
        """
        return best - self._CONSTANT - (best.abs() + 300) * 2.0**-20
