"""Plans of layers that keep a state of a text in the place of keys and values.

This module imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from asyncgen.families.plans.config_values import MOST
from asyncgen.families.plans.convolution_plan import ConvolutionPlan
from asyncgen.families.plans.delta_plan import MOST_WINDOW, DeltaPlan
from asyncgen.families.plans.griffin_plan import GriffinPlan
from asyncgen.families.plans.lightning_plan import LightningPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.families.plans.config_values import ConfigValues


class StateShape(Protocol):
    """Sizes of the states of a mixer.

    Attributes:
        window: Inputs that its convolution sees, W; 0 if it has none.
        convolved: Features of each, C.
        shape: Shape of the state of a row, all 1 or more.
    """

    @property
    def window(self) -> int: ...
    @property
    def convolved(self) -> int: ...
    @property
    def shape(self) -> tuple[int, int, int]: ...


@dataclass(frozen=True, slots=True)
class StatePlan:
    """One mixer with a state, whose size does not depend on the length of the text.

    Attributes:
        kind: ``"selective"``: Mamba, each channel with decays of its own. ``"dual"``: Mamba 2, one
            decay for each head.
        channels: Channels between the two products, D.
        size: Numbers that the state has of each channel, N.
        window: Inputs that the convolution sees, W.
        heads: Heads of these channels; as many as channels if each is one.
        groups: Groups of heads that read and write their states alike.
        rank: Inputs of the product that makes time steps; 0 if there is none.
        has_bias: True if the first product has biases.
        has_leave_bias: True if the last one has.
        has_window_bias: True if the convolution has.
        least_step: Shortest time step.
        most_step: Longest; infinity without a limit.
        eps: Of the norms inside; ``None``: there are none.
        has_norm_weights: True if those of steps, inputs and outputs have weights (``"selective"``).
        norm_groups: Number of parts in which channels are normalised; ``"dual"`` alone.
        norms_first: True if that comes before the gate, and not behind it.
        factors: On gate, channels, inputs, outputs and steps of the first product; ``"dual"``
            alone.
        enter_scale: Factor on the mixer's input.
        leave_scale: Factor on its output.
    """

    kind: Literal["selective", "dual"]
    channels: int
    size: int
    window: int
    heads: int
    groups: int
    rank: int = 0
    has_bias: bool = False
    has_leave_bias: bool = False
    has_window_bias: bool = True
    least_step: float = 0.0
    most_step: float = float("inf")
    eps: float | None = None
    has_norm_weights: bool = False
    norm_groups: int = 1
    norms_first: bool = False
    factors: tuple[float, ...] = (1.0,) * 5
    enter_scale: float = 1.0
    leave_scale: float = 1.0

    @property
    def convolved(self) -> int:
        """Channels that go through the convolution, C."""
        return self.channels + (2 * self.groups * self.size if self.kind == "dual" else 0)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the state of a row: heads, channels of each, and N."""
        return self.heads, self.channels // self.heads, self.size


MixerPlan: TypeAlias = StatePlan | DeltaPlan | ConvolutionPlan | LightningPlan | GriffinPlan
"""Plan of any mixer with a state."""


def keeps_states(config: object) -> bool:
    """Return whether layers of a configured network keep states."""
    return bool(getattr(config, "has_states", False))


def selective_plan(
    values: ConfigValues, *, eps: float | None = None, channels: int | None = None
) -> StatePlan:
    """Read the mixer of Mamba.

    Args:
        values: Of the file.
        eps: Of the norms of steps, inputs and outputs; ``None``: there are none.
        channels: Between the two products; ``None``: the file's width.
    """
    if channels is None:
        channels = values.count("intermediate_size", default=expanded(values))
    rank = values.value("time_step_rank")
    if rank == "auto":
        rank = -(-values.count("hidden_size") // 16)
    else:
        rank = values.count("time_step_rank", default=-(-values.count("hidden_size") // 16))
    return StatePlan(
        "selective",
        channels,
        values.count("state_size"),
        values.count("conv_kernel", most=MOST_WINDOW),
        heads=channels,
        groups=1,
        rank=rank,
        has_bias=values.flag("use_bias"),
        has_leave_bias=values.flag("use_bias"),
        has_window_bias=values.flag("use_conv_bias"),
        eps=eps,
    )


MAMBA_2: Mapping[str, object] = {
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "n_groups": 1,
    "state_size": 256,
    "conv_kernel": 4,
    "expand": 2,
    "use_conv_bias": True,
    "time_step_limit": (0.0, float("inf")),
}
"""Values of missing keys of Mamba 2 beside attention."""

MAMBA_SPELLINGS: Mapping[str, str] = {
    "n_groups": "mamba_n_groups",
    "state_size": "mamba_d_state",
    "conv_kernel": "mamba_d_conv",
    "expand": "mamba_expand",
    "use_conv_bias": "mamba_conv_bias",
    "use_bias": "mamba_proj_bias",
}
"""Names that files have for these keys beside attention."""


def dual_plan(
    values: ConfigValues,
    *,
    heads_key: str = "num_attention_heads",
    size_key: str | None = "head_dim",
    channels: int | None = None,
) -> StatePlan:
    """Read the mixer of Mamba 2.

    Args:
        values: Of the file.
        heads_key: Key of the number of heads.
        size_key: Key of their size; ``None``: an equal share of the channels.
        channels: All of them; ``None``: as many as ``expand`` says; 0 if heads may be more or
            fewer.
    """
    heads, groups = values.count(heads_key), values.count("n_groups")
    wanted = expanded(values) if channels is None else channels
    size = max(1, wanted // heads) if size_key is None else values.count(size_key)
    channels = heads * size
    if wanted and wanted != channels:
        allowed = f"with heads of {size} it must be {wanted} in all, expand times hidden_size"
        raise values.bad(heads_key, heads, allowed)
    if heads % groups:
        raise values.bad("n_groups", groups, f"must divide the {heads} heads")
    least, most = _limits(values)
    return StatePlan(
        "dual",
        channels,
        values.count("state_size"),
        values.count("conv_kernel", most=MOST_WINDOW),
        heads=heads,
        groups=groups,
        has_bias=values.flag("use_bias"),
        has_leave_bias=values.flag("use_bias"),
        has_window_bias=values.flag("use_conv_bias"),
        least_step=least,
        most_step=most,
        eps=values.epsilon(),
        norm_groups=groups,
    )


def expanded_width(values: ConfigValues) -> int:
    """Read the channels between the two products, if the file has a factor."""
    return values.count("intermediate_size", default=expanded(values))


def expanded(values: ConfigValues) -> int:
    """Read the channels between the two products, of a factor."""
    factor = values.positive("expand")
    channels = int(factor * values.count("hidden_size"))
    if channels > MOST:
        raise values.bad("expand", factor, f"times `hidden_size` it must be {MOST} at most")
    return channels


def _limits(values: ConfigValues) -> tuple[float, float]:
    """Read the shortest and the longest time step."""
    stated = values.value("time_step_limit")
    allowed = "must be two numbers, the first neither below 0 nor above the second"
    if not isinstance(stated, (list, tuple)) or len(stated) != 2:
        raise values.bad("time_step_limit", stated, allowed)
    ends = []
    for end in stated:
        # Infinity is no number of JSON: some files have a text or an object.
        if isinstance(end, dict):
            end = end.get("__float__")
        if end in ("inf", "Infinity"):
            end = float("inf")
        if isinstance(end, bool) or not isinstance(end, (int, float)) or 1e30 < end < float("inf"):
            raise values.bad("time_step_limit", stated, allowed)
        ends.append(float(end))
    least, most = ends
    if not 0 <= least <= most:
        raise values.bad("time_step_limit", stated, allowed)
    return least, most
