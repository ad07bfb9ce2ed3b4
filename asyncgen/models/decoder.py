"""The decoder that all families share: embeddings, layers by their plans, norm and head.

A model computes over tokens, not rows: a step's B · S tokens lie one after another as ``[N, E]``,
and only the attention context knows the row of each. So padded rows and packed rows run the same
code. Models know nothing of batching, caches, sampling or text.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from asyncgen.errors import InvalidRequestError
from asyncgen.families.arch.registry import FAMILIES
from asyncgen.models.altup import AltUpLayer, Streams
from asyncgen.models.decoder_layer import DecoderLayer, Workspace
from asyncgen.models.embedding_and_head import EmbeddingAndHead
from asyncgen.models.kernels.compiled_layers import compile_layers, compiled_ends
from asyncgen.models.kernels.linear import Embedding, Linear
from asyncgen.models.kernels.norm import Norm
from asyncgen.models.kernels.parameter import VERSION, all_writes, counting_writes, num_writes
from asyncgen.models.kernels.rope import Rotary, query_factors, sinusoids
from asyncgen.models.layer_inputs import LayerInputs
from asyncgen.models.layer_ropes import rope_of, ropes_of
from asyncgen.models.mixers.mixer_layer import MixerLayer
from asyncgen.models.mixers.shared_block import (
    SharedBlock,
    SharedBlockLayer,
    num_blocks,
    unused_adapters,
)
from asyncgen.models.varied_layer import VariedLayer, VariedSpace
from asyncgen.models.weight_rules import weight_rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from asyncgen.families.config import ModelConfig
    from asyncgen.families.plans.declaration import Family
    from asyncgen.models.attention.dense import AttentionContext
    from asyncgen.models.weight_map import WeightRule


KEPT_TOKENS: Final = 16
"""Workspaces of at most so many tokens are kept between steps."""

_FREQUENCIES: Final = r"\.rotary_emb\.inv_freq$"
"""Angles that early checkpoints stored with every layer."""


class _NoSpaces(dict[int, Any]):
    """No memory of forward passes; their number of tokens may be a symbol."""

    def pop(self, key: int, default: Any = None) -> Any:
        """Return the default."""
        return default


class Plan(NamedTuple):
    """Functions that a decoder computes with, made of its parameters.

    Attributes:
        lookup: Scaled rows ``[N, E]`` of ids ``[N]``.
        place: Applies what comes before the layers to rows and positions, see `_placing`.
        layers: Each layer's ``run``.
        norm: The last one, of rows into others.
        product: That of the head.
        compiled: All layers in one call of our kernels, if there is such a call.
        makes_logits: True if that call includes the head's product.
        finish: Changes the head's product in place, or ``None``.
    """

    lookup: Callable[[Tensor], Tensor]
    place: Callable[[Tensor, Tensor], Sequence[tuple[Tensor, ...]]]
    layers: tuple[Callable[..., None], ...]
    norm: Callable[[Tensor, Tensor], Tensor]
    product: Callable[[Tensor], Tensor]
    compiled: Any | None
    makes_logits: bool
    finish: Callable[[Tensor], Tensor] | None

    def logits(self, rows: Tensor) -> Tensor:
        """Compute logits ``[N, V]`` of normalised rows ``[N, E]``."""
        found = self.product(rows)
        return found if self.finish is None else self.finish(found)


FOLLOWING: Final = threading.RLock()
"""Held while a model follows writes: threads of several engines may compute with it."""


class DecoderLM(EmbeddingAndHead):
    """Decoder-only language model: ids and positions in, logits out.

    It computes no gradients; `torch.no_grad` is not needed, since no parameter asks for any. After
    loading call `prepare` once, on the thread that computes.

    Attributes:
        config: Description of the network.
        packed_length: Tokens of the longest text that can share a packed step; ``None``: any
            length. The angles of ``dynamic`` and ``longrope`` change with the longest text in the
            step, so beyond its original length such a text must run alone.
        reads_ids: True if layers read more of a token than the stream.
    """

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype | None = None) -> None:
        """Make the parameters, uninitialised, on the current default device (``meta`` too).

        Args:
            config: The network's description.
            dtype: Of the parameters; ``None``: torch's default.
        """
        dtype = dtype or torch.get_default_dtype()
        super().__init__(config, dtype)
        self.layers = nn.ModuleList(
            self._make_layer(index, dtype) for index in range(config.num_hidden_layers)
        )
        self.blocks = nn.ModuleList(
            SharedBlock(config, dtype=dtype) for _ in range(num_blocks(config))
        )
        self.has_blocks = len(self.blocks) > 0
        for layer in self.layers:
            if isinstance(layer, SharedBlockLayer):
                layer.use(self.blocks)
        self.reads_ids = config.stream.layer_inputs is not None
        if self.reads_ids:
            self.layer_inputs = LayerInputs(config, dtype=dtype)
        self.has_streams = config.stream.streams > 1
        if self.has_streams:
            self.streams = Streams(config, dtype=dtype)
        self.norm = self._make_norm(dtype)
        self._make_head(dtype)
        self._make_positions(dtype)
        ropes = config.ropes or (config.rope,)
        lengths = [
            rope.original_max_position_embeddings
            for rope in ropes
            if rope.rope_type in ("dynamic", "longrope")
        ]
        self.packed_length = min(lengths, default=None)
        self._spaces: dict[int, Workspace] = {}
        self._followed: tuple[nn.Parameter, ...] = ()
        self._num_writes = 0
        self._keeps_spaces = config.layer_plans[0].varied is None  # others hold results, not memory

    @property
    def family(self) -> Family:
        """Declaration of its architecture."""
        return FAMILIES[self.config.model_type]

    @property
    def runs_in_one_call(self) -> bool:
        """True if one call of our kernels computes all layers, over their pages."""
        return self._ready().compiled is not None

    def prepare(self) -> None:
        """Lay out every weight for its kernel; idempotent, and again after weights were replaced.

        A loader may call `Linear.prepare` and its like module by module before, so that no two
        large matrices exist twice at once. A tied head that was made of this table is kept. What
        another thread writes meanwhile counts as written behind it.
        """
        before = {name: num_writes(weight) for name, weight in self.named_parameters()}
        for module in self.modules():
            if isinstance(module, (Linear, Embedding, Norm)):
                module.prepare()
        layers: list[Any] = list(self.layers)
        for layer in layers:
            layer.prepare()
        if self.reads_ids:
            self.layer_inputs.prepare()
        if self.has_streams:
            self.streams.prepare()
        if self.config.tie_word_embeddings:
            self._tie_head()
        self._spaces.clear()
        norm, head = self.norm.scaler, self.lm_head
        ends = None if head.adds_bias else compiled_ends(norm, head.ready())
        compiled = compile_layers(layers, self.config.hidden_size, self.dtype, ends)
        self._followed = counting_writes(self)
        self._num_writes = sum(
            before.get(name, num_writes(weight)) for name, weight in self.named_parameters()
        )
        self._plan = Plan(
            self._make_lookup(),
            self._placing(),
            tuple(layer.run for layer in layers),
            norm.into,
            head.product(),
            compiled,
            compiled is not None and ends is not None,
            self._finishing(),
        )

    def follow_writes(self) -> None:
        """Prepare anew what was made of parameters that were written to in place since."""
        if self._is_behind():
            with FOLLOWING:
                if self._is_behind():  # no other thread has followed meanwhile
                    self.prepare()

    def _is_behind(self) -> bool:
        """Tell whether there is no plan, or one of parameters before they were written to."""
        if self._plan is None:
            return True
        try:
            return sum(map(VERSION, self._followed)) != self._num_writes
        except RuntimeError:  # some were replaced by tensors of inference mode
            return all_writes(self._followed) != self._num_writes

    def _ready(self) -> Plan:
        """Return the plan, of the parameters as they are now."""
        if not torch.compiler.is_compiling():
            self.follow_writes()
        plan: Plan = self._plan
        return plan

    def embed(self, input_ids: Tensor) -> Tensor:
        """Look ids ``[B, S]`` up in the embedding table, as ``[B, S, E]``.

        If layers have rows of their own (`reads_ids`), these stand behind each, for `hidden`.
        """
        self._ready()
        rows = self.look_up(input_ids)
        if not self.reads_ids:
            return rows
        own = self.layer_inputs.lookup(input_ids.reshape(-1)).view(*input_ids.shape, -1)
        return torch.cat((rows, own), dim=-1)

    def hidden(
        self,
        embeddings: Tensor,
        positions: Tensor,
        attention: AttentionContext,
        collect: list[Tensor] | None = None,
        depth: int | None = None,
    ) -> Tensor:
        """Run the layers and the final norm.

        Args:
            embeddings: Result of `embed`, in the model's dtype; not changed.
            positions: Position of each token in its text, ``[B, S]`` or ``[1, S]``, int64.
            attention: Does the attention.
            collect: Gets the embeddings and each layer's output, ``[B, S, E]``; the last one
                normalised, so L + 1 tensors.
            depth: Number of layers to run; ``None``: all.

        Returns:
            ``[B, S, E]``.
        """
        self._ready()
        batch, length, width = embeddings.shape
        rows = None
        if self.reads_ids:
            width = self.config.hidden_size
            embeddings, rows = embeddings[..., :width], embeddings[..., width:].flatten(0, 1)
        stream = embeddings.reshape(-1, width).clone()
        self._run(stream, positions, batch, attention, collect, depth, rows)
        normed = self.norm.scaler.into(stream, stream).view(batch, length, width)
        if collect is not None:
            collect.append(normed)
        return normed

    def project(self, hidden: Tensor) -> Tensor:
        """Compute logits ``[..., V]`` of normalised hidden states ``[..., E]``, in the model's
        dtype."""
        logits = self._ready().logits(hidden.reshape(-1, hidden.shape[-1]))
        return logits.view(*hidden.shape[:-1], logits.shape[-1])

    def decode(self, input_ids: Tensor, positions: Tensor, attention: AttentionContext) -> Tensor:
        """Compute logits ``[B, V]`` after the last of ids ``[B, S]``; the hot path, without checks.

        Args:
            input_ids: ``[B, S]``, int64.
            positions: ``[B, S]`` or ``[1, S]``, int64.
            attention: Does the attention; its cache grows by S positions.
        """
        plan = self._ready()
        batch = input_ids.shape[0]
        stream = plan.lookup(input_ids.reshape(-1))  # [N, E]
        rows = self.layer_inputs.lookup(input_ids.reshape(-1)) if self.reads_ids else None
        self._run(stream, positions, batch, attention, None, None, rows)
        if stream.shape[0] != batch:
            stream = stream.view(batch, -1, stream.shape[1])[:, -1].contiguous()
        return plan.logits(plan.norm(stream, stream))

    def decode_packed(
        self,
        input_ids: Tensor,
        positions: Tensor,
        last: Tensor,
        attention: AttentionContext,
        *,
        is_recorded: bool = False,
    ) -> Tensor:
        """Compute logits ``[R, V]`` after some of the tokens of packed rows.

        Args:
            input_ids: Tokens of all rows, one row after another, ``[N]``, int64.
            positions: Position of each token in its text, ``[N]``, int64.
            last: Tokens whose logits are wanted, ``[R]``, int64. R may be 0. If R is N, all tokens
                are wanted, in order.
            attention: Does the attention; the rows are laid out.
            is_recorded: True if the device will repeat this without the function.

        Raises:
            InvalidRequestError: A position is beyond `packed_length`.
        """
        plan: Plan = self._plan or self._ready()
        # Make logits outside of inference mode: users' processors may write to them.
        if not plan.makes_logits or attention.compiled is None:
            hidden = self.hidden_packed(
                input_ids, positions, last, attention, is_recorded=is_recorded
            )
            return plan.logits(hidden)
        shape = last.shape[0], self.config.vocab_size
        logits = last.new_empty(shape, dtype=self.embed_tokens.dtype)
        with torch.inference_mode():
            self._run_packed(plan, input_ids, positions, last, attention, logits)
        return logits if plan.finish is None else plan.finish(logits)

    def hidden_packed(
        self,
        input_ids: Tensor,
        positions: Tensor,
        wanted: Tensor,
        attention: AttentionContext,
        *,
        is_recorded: bool = False,
    ) -> Tensor:
        """Compute normalised hidden states ``[R, E]`` of some of the tokens of packed rows.

        `project` makes logits of them. Arguments and errors are those of `decode_packed`.
        """
        plan: Plan = self._plan or self._ready()
        # Autograd would take a tenth of a short step's time, for nothing. In a recording it takes
        # none, and there tensors must be writable from outside.
        with torch.inference_mode(not is_recorded):
            found = self._run_packed(plan, input_ids, positions, wanted, attention)
            return plan.norm(found, found)

    def rope_frequencies(self, index: int) -> Tensor | None:
        """Return the radians per position of each pair of a layer's keys, ``[D / 2]`` float32;
        ``None``: they do not rotate."""
        rope = rope_of(self.config, index)
        return None if rope is None else self._rotaries[rope].frequencies

    def take_workspace(self, tokens: int) -> object:
        """Hand over the memory that steps of so many tokens use; the next step gets other memory.

        The caller keeps it as long as its recording, which goes on writing there.
        """
        return self._spaces.pop(tokens, None)

    def __getstate__(self) -> dict[str, Any]:
        """Leave workspaces out of a copy."""
        return {**super().__getstate__(), "_spaces": {}}

    def ignored_weights(self) -> tuple[str, ...]:
        """List regular expressions of names that checkpoints carry and the model does not need."""
        unneeded = (_FREQUENCIES, *self.family.unneeded)
        if self.config.extra_layers:
            layers, first = self.config.names["layers"].replace(".", r"\."), len(self.layers)
            extra = range(first, first + self.config.extra_layers)
            unneeded = (*unneeded, rf"^{layers}\.({'|'.join(map(str, extra))})\.")
        unneeded = (*unneeded, *unused_adapters(self.config))
        is_tied = self.config.tie_word_embeddings
        head = self.config.names["lm_head"].replace(".", r"\.")
        return (*unneeded, rf"^{head}\.weight$") if is_tied else unneeded

    def weight_map(self) -> tuple[WeightRule, ...]:
        """List the sources of each parameter, in the order of computation."""
        return weight_rules(self.config, self.family)

    def _make_layer(self, index: int, dtype: torch.dtype) -> nn.Module:
        plan = self.config.layer_plans[index]
        kind: type[Any] = DecoderLayer
        is_whole = plan.has_attention and plan.has_feed_forward and plan.normed_residual is None
        if plan.shared_block is not None:
            kind = SharedBlockLayer
        elif plan.mixer is not None or not is_whole:
            kind = MixerLayer
        elif plan.varied is not None:
            kind = AltUpLayer if self.config.stream.streams > 1 else VariedLayer
        return kind(self.config, index, rope=rope_of(self.config, index), dtype=dtype)

    def _make_norm(self, dtype: torch.dtype) -> Norm:
        config = self.config
        plan = config.layer_plans[-1].norm
        return Norm(config.hidden_size, config.rms_norm_eps, plan, dtype=dtype)

    def _make_positions(self, dtype: torch.dtype) -> None:
        """Make position embeddings, ropes, and the norm of embeddings."""
        config, hidden = self.config, self.config.hidden_size
        self._rotaries = [
            Rotary(replace(config, rope=rope, ropes=None, head_dim=size), dtype)
            for rope, size in ropes_of(config)
        ]
        if config.stream.positions == "table":
            assert config.position_limit is not None
            places = config.position_limit + config.stream.position_offset
            self.embed_positions = Embedding(places, hidden, dtype=dtype)
        if "embed_norm" in config.names:
            self.embed_norm = Norm(
                hidden, config.rms_norm_eps, config.layer_plans[0].norm, dtype=dtype
            )

    def _make_space(self, tokens: int, like: Tensor) -> Any:
        """Allocate the memory that the layers share for so many tokens."""
        if self.config.layer_plans[0].varied is not None:
            return VariedSpace(like)
        space = Workspace(self.config, tokens, like)
        if self.has_blocks:
            space.pair = like.new_empty(tokens, 2 * self.config.hidden_size)
        return space

    def _placing(self) -> Callable[[Tensor, Tensor], Sequence[tuple[Tensor, ...]]]:
        """Make the function that is applied to the stream ``[N, E]`` and positions ``[N]`` before
        the layers.

        Its result is passed to each layer's `run`.
        """
        stream_plan = self.config.stream
        scale = 1.0 if stream_plan.scales_rows else self._scale(stream_plan.embedding_scale)
        offset = stream_plan.position_offset
        lookup: Callable[[Tensor], Tensor] | None = None
        if stream_plan.positions == "table":
            lookup = self.embed_positions.lookup
        elif stream_plan.positions == "sinusoids":
            lookup = sinusoids(self.config.hidden_size, self.dtype)
        norm = self.embed_norm.scaler.into if "embed_norm" in self.config.names else None
        for rotary in self._rotaries:
            rotary.dtype = self.dtype
        turns = [rotary.rows for rotary in self._rotaries]
        scalings = [
            (number, rope.query_scaling)
            for number, (rope, _) in enumerate(ropes_of(self.config))
            if rope.query_scaling is not None
        ]

        def place(stream: Tensor, positions: Tensor) -> Sequence[tuple[Tensor, ...]]:
            if scale != 1:
                stream.mul_(scale)
            if lookup is not None:
                stream.add_(lookup(positions + offset if offset else positions))
            if norm is not None:
                stream.copy_(norm(stream, stream))
            placed = [rows(positions) for rows in turns]
            for number, scaling in scalings:
                placed[number] = (*placed[number], query_factors(scaling, positions, self.dtype))
            return placed

        return place

    def prepare_export(self, length: int) -> None:
        """Make what a forward pass makes at its first use, so that no program contains that.

        Args:
            length: Most positions of a text.

        Raises:
            InvalidRequestError: The model never ran, so weights are not laid out; or its rotations
                depend on the length of the text.
        """
        if self._plan is None:
            raise InvalidRequestError("torch.export", "forward", "call the model once before")
        for rotary in self._rotaries:
            rotary.reserve(length)

    @contextmanager
    def keeping_no_spaces(self) -> Iterator[None]:
        """Make memory for each forward pass, and keep none of it: it is a program's."""
        kept, keeps = self._spaces, self._keeps_spaces
        self._spaces, self._keeps_spaces = _NoSpaces(), False
        try:
            yield
        finally:
            self._spaces, self._keeps_spaces = kept, keeps

    def _finishing(self) -> Callable[[Tensor], Tensor] | None:
        """Make the function that changes the head's product ``[N, V]``, in place."""
        scale, cap = self.config.stream.logit_scale, self.config.stream.logit_cap
        if scale == 1 and cap is None:
            return None

        def finish(logits: Tensor) -> Tensor:
            if scale != 1:
                logits = logits.mul_(scale)
            return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

        return finish

    def _run_packed(
        self,
        plan: Plan,
        input_ids: Tensor,
        positions: Tensor,
        wanted: Tensor,
        attention: AttentionContext,
        logits: Tensor | None = None,
    ) -> Tensor:
        """Send packed rows through the layers; see `decode_packed`, and `_run` for the logits."""
        limit = self.packed_length
        if limit is not None and int(positions.max()) >= limit:
            raise InvalidRequestError(
                "positions", int(positions.max()), f"packed rows end at {limit} tokens"
            )
        stream = plan.lookup(input_ids)  # [N, E]
        rows = self.layer_inputs.lookup(input_ids) if self.reads_ids else None
        chosen = None if wanted.shape[0] == input_ids.shape[0] else wanted.contiguous()
        return self._run(stream, positions, 1, attention, None, None, rows, chosen, logits)

    def _run(
        self,
        stream: Tensor,
        positions: Tensor,
        batch: int,
        attention: AttentionContext,
        collect: list[Tensor] | None,
        depth: int | None = None,
        rows: Tensor | None = None,
        wanted: Tensor | None = None,
        logits: Tensor | None = None,
    ) -> Tensor:
        """Send the stream ``[N, E]`` through the layers, in place.

        Args:
            stream: The embeddings; overwritten with the result.
            positions: Position of each token.
            batch: Number of rows.
            attention: Does the attention.
            collect: Gets the input of each layer.
            depth: Number of layers to run; ``None``: all.
            rows: Rows that layers read beside the stream.
            wanted: Tokens whose results are wanted, ``[R]``; ``None``: all.
            logits: Gets those of the results, ``[R, V]``, with a plan that makes logits; ``None``:
                not wanted.

        Returns:
            The results ``[R, E]`` or ``[N, E]``, in the stream's memory if that is all of it.
        """
        plan: Plan = self._plan or self._ready()
        tokens = stream.shape[0]
        if positions.numel() != tokens:
            positions = positions.expand(batch, -1)
        placed = plan.place(stream, positions.reshape(-1))
        attention.begin(batch, tokens // batch)
        pages, compiled = attention.compiled, plan.compiled
        if compiled is not None and pages is not None and collect is None and depth is None:
            compiled.run(stream, placed, pages, wanted, logits)
            return stream if wanted is None else stream[: wanted.shape[0]]
        assert logits is None, "a plan that makes logits needs pages that its one call reads"
        # Take the space out while it is in use, so that calls from two threads never share one.
        space: Any = self._spaces.pop(tokens, None)
        if space is None:
            # Tensors made in inference mode cannot be written to outside of it.
            with torch.inference_mode(False):
                space = self._make_space(tokens, stream)
        if rows is not None:
            space.inputs = self.layer_inputs.mix(rows, stream)
        if self.has_streams:
            space.others = self.streams.begin(stream)
        if self.has_blocks:
            space.pair[:, stream.shape[1] :] = stream
        for run in plan.layers if depth is None else plan.layers[:depth]:
            if collect is not None:
                collect.append(stream.view(batch, -1, stream.shape[1]).clone())
            run(stream, placed, attention, space)
        if self.has_streams:
            self.streams.end(stream, space.others)
        if self._keeps_spaces and tokens <= KEPT_TOKENS:
            self._spaces[tokens] = space
        return stream if wanted is None else stream.index_select(0, wanted)
