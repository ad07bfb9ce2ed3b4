"""The decoder that most architectures share: pre-normalised blocks, gated feed-forward.

A model computes over tokens, not rows: a step's B · S tokens are laid out one after another as
``[N, E]``, and the attention context alone knows which row each belongs to. So padded rows and
packed rows run the same code. Models know nothing of batching, caches, sampling or text.

Results are written into the memory of a `Workspace` that all layers share: at batch 1 a step is
bound by the number of operator calls, and memory that stays needs no new views.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asyncgen.errors import InvalidRequestError
from asyncgen.models.kernels.blocks import compile_layers, compiled_block
from asyncgen.models.kernels.linear import Embedding, Linear
from asyncgen.models.kernels.norm import LayerNorm, RMSNorm, make_scaler
from asyncgen.models.kernels.prepared import Prepared
from asyncgen.models.kernels.products import is_laid_out_anew
from asyncgen.models.kernels.rope import Rotary, turner
from asyncgen.weight_map import WeightRule, module_rules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from asyncgen.models.attention.dense import AttentionContext
    from asyncgen.models.config import ModelConfig
    from asyncgen.models.kernels.blocks import Block


KEPT_TOKENS: Final = 16
"""Workspaces of so few tokens are kept between steps."""

HEAD_COPY_SHARE: Final = 0.15
"""A tied head gets its own prepared copy if that is at most this share of all weights.

The copy exists beside the table, and loading may take 1.2 times the checkpoint in all.
"""

HEAD_COPY_BYTES: Final = 8 << 20
"""A tied head also gets its own copy if it is no larger than this."""

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": torch._C._nn.silu_,
    "swish": torch._C._nn.silu_,
    "gelu": F.gelu,
    "gelu_new": lambda gate: F.gelu(gate, approximate="tanh"),
    "gelu_pytorch_tanh": lambda gate: F.gelu(gate, approximate="tanh"),
    "relu": torch.relu_,
}


class Workspace:
    """Memory for the intermediate results of N tokens, and the views that layers need of it."""

    __slots__ = ("activated", "gate", "gate_up", "heads", "normed", "qkv", "turned", "up")

    def __init__(self, config: ModelConfig, tokens: int, like: Tensor) -> None:
        """Allocate for ``tokens`` tokens, in the dtype and on the device of ``like``."""
        size, width = config.head_dim, config.intermediate_size
        heads = config.num_attention_heads + 2 * config.num_key_value_heads
        self.normed = like.new_empty(tokens, config.hidden_size)
        self.qkv = like.new_empty(tokens, heads * size)
        self.gate_up = like.new_empty(tokens, 2 * width)
        self.activated = like.new_empty(tokens, width)
        self.heads = self.qkv.view(tokens, heads, size)
        self.turned = _halves(self.heads, heads - config.num_key_value_heads)
        self.gate, self.up = torch.split(self.gate_up, width, dim=-1)


def _halves(heads: Tensor, count: int) -> Tensor:
    """The first ``count`` of ``[N, H + 2K, D]`` as pairs of halves, ``[N, count, 2, D / 2]``."""
    tokens, every, size = heads.shape
    return heads.view(tokens, every, 2, size // 2)[:, :count]


class DecoderLayer(Prepared):
    """One block: attention, then feed-forward, each normalised before and added to the stream."""

    def __init__(self, config: ModelConfig, index: int, *, qk_norm: bool, dtype: torch.dtype):
        """Make the parameters.

        Args:
            config: The model's.
            index: Which layer this is.
            qk_norm: Whether queries and keys are normalised per head before they are turned.
            dtype: Of the parameters.
        """
        super().__init__()
        self.index = index
        self.num_turned = config.num_attention_heads + config.num_key_value_heads
        self.num_heads = config.num_attention_heads
        self.head_dim = config.head_dim
        self.width = config.intermediate_size
        self.eps = config.rms_norm_eps
        hidden, queries = config.hidden_size, config.num_attention_heads * config.head_dim
        values = config.num_key_value_heads * config.head_dim
        self.input_norm = RMSNorm(hidden, self.eps, dtype=dtype)
        self.qkv = Linear(hidden, queries + 2 * values, config.attention_bias, dtype=dtype)
        self.q_norm = RMSNorm(self.head_dim, self.eps, dtype=dtype) if qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, self.eps, dtype=dtype) if qk_norm else None
        self.output = Linear(queries, hidden, config.attention_output_bias, dtype=dtype)
        self.post_norm = RMSNorm(hidden, self.eps, dtype=dtype)
        gates = ACTIVATIONS[config.hidden_act] is ACTIVATIONS["silu"]
        self.gate_up = Linear(hidden, 2 * self.width, config.mlp_bias, dtype=dtype, gates=gates)
        self.down = Linear(self.width, hidden, config.mlp_bias, dtype=dtype)
        self.activate = ACTIVATIONS[config.hidden_act]

    def prepare(self) -> None:
        """Gather what `run` uses; again after weights were replaced or moved."""
        scaler = None
        if self.q_norm is not None and self.k_norm is not None:
            size = self.head_dim
            # Queries and keys lie side by side, so their norms are one with a weight per head.
            weights = (
                self.q_norm.weight.expand(self.num_heads, size),
                self.k_norm.weight.expand(self.num_turned - self.num_heads, size),
            )
            scaler = make_scaler(torch.cat(weights).detach(), size, self.eps)
        gate_up = self.gate_up.ready()
        self._plan = (
            self.input_norm.scaler.into,
            self.qkv.ready().into,
            scaler,
            turner(self.input_norm.weight),
            self.output.ready().add_to,
            self.post_norm.scaler.into,
            gate_up.is_gated,
            gate_up.into,
            self.down.ready().add_to,
        )

    def compiled(self) -> Block | None:
        """Its parts, where all of them are our kernels'."""
        heads_norm = self._ready()[2]
        return compiled_block(
            self.input_norm.scaler,
            self.qkv.ready(),
            heads_norm,
            self.output.ready(),
            self.post_norm.scaler,
            self.gate_up.ready(),
            self.down.ready(),
        )

    def run(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        attention: AttentionContext,
        space: Workspace,
    ) -> None:
        """Add this block's output to the stream ``x`` ``[N, E]`` in place.

        Args:
            x: The residual stream.
            cos: Cosines of the tokens' positions, ``[N, 1, 2, D / 2]``.
            sin: Signed sines, ``[N, 1, 2, D / 2]``.
            attention: Does the attention.
            space: Memory for N tokens.
        """
        plan = self._plan or self._ready()
        input_norm, qkv_into, scaler, turn, add_output, post_norm, *feed_forward = plan
        qkv = qkv_into(input_norm(x, space.normed), space.qkv)
        if qkv is space.qkv:
            heads, turned = space.heads, space.turned
        else:
            heads = qkv.view(qkv.shape[0], -1, self.head_dim)  # [N, H + 2K, D]
            turned = _halves(heads, self.num_turned)
        if scaler is not None:
            unturned = heads[:, : self.num_turned]
            scaler.into(unturned, unturned)
        turn(turned, cos, sin)
        add_output(x, attention.attend(self.index, heads))
        normed = post_norm(x, space.normed)
        is_gated, gate_up_into, add_down = feed_forward
        if is_gated:
            add_down(x, gate_up_into(normed, space.activated))
            return
        gate_up = gate_up_into(normed, space.gate_up)
        if gate_up is space.gate_up:
            gate, up = space.gate, space.up
        else:
            gate, up = torch.split(gate_up, self.width, dim=-1)
        add_down(x, torch.mul(self.activate(gate), up, out=space.activated))


class DecoderLM(Prepared):
    """A decoder-only language model: ids and positions in, logits out.

    It computes no gradients; wrap calls in `torch.no_grad`, or nothing, since no parameter asks
    for any. After loading call `prepare` once, on the thread that computes.

    Attributes:
        config: The network's description.
        model_type: Name of the architecture in ``config.json``.
        class_name: What people know the whole model by.
        tokenizer_names: What they know its tokenizer by, where it is the family's own.
        has_encoder: Whether there is an encoder as well.
        stack_prefix: First part of the names of all stored weights but the head's.
        table_name: What follows it in the name of the embedding table.
        unneeded: Regular expressions of names that its checkpoints carry in vain.
        qk_norm: Whether queries and keys are normalised per head.
        has_token_types: Whether a token may have a type, whose row of the embedding table is
            added to its own.
        packed_length: Tokens of the longest text that can share a packed step; ``None``: any
            length. The angles of ``dynamic`` and ``longrope`` change with the longest text in the
            step, so beyond its original length such a text must run alone.
    """

    model_type: ClassVar[str] = ""
    class_name: ClassVar[str] = ""
    tokenizer_names: ClassVar[tuple[str, ...]] = ()
    has_encoder: ClassVar[bool] = False
    stack_prefix: ClassVar[str] = "model."
    table_name: ClassVar[str] = "embed_tokens"
    unneeded: ClassVar[tuple[str, ...]] = (r"\.rotary_emb\.inv_freq$",)
    qk_norm: ClassVar[bool] = False
    has_token_types: ClassVar[bool] = False

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype | None = None) -> None:
        """Make the parameters, uninitialised, on the current default device (``meta`` too).

        Args:
            config: The network's description.
            dtype: Of the parameters; ``None``: torch's default.
        """
        super().__init__()
        dtype = dtype or torch.get_default_dtype()
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype=dtype)
        self.layers = nn.ModuleList(
            self._make_layer(index, dtype) for index in range(config.num_hidden_layers)
        )
        self.norm = self._make_norm(dtype)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, dtype=dtype)
        if config.tie_word_embeddings:
            self.lm_head.weight = None
        self._make_positions(dtype)
        rope = config.rope
        is_switched = rope.rope_type in ("dynamic", "longrope")
        self.packed_length = rope.original_max_position_embeddings if is_switched else None
        self._spaces: dict[int, Workspace] = {}
        # In a tuple, or it would become a parameter of this module as well.
        self._head_made_of: tuple[nn.Parameter, ...] = ()

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary, V."""
        return self.config.vocab_size

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in."""
        return self.embed_tokens.dtype

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.embed_tokens.weight.device

    def prepare(self) -> None:
        """Lay out every weight for its kernel; idempotent, and again after weights were replaced.

        A loader may call `Linear.prepare` and its like module by module before, so that no two
        large matrices exist twice at once. A tied head that was made of this table is kept.
        """
        for module in self.modules():
            if isinstance(module, (Linear, Embedding, RMSNorm, LayerNorm)):
                module.prepare()
        layers: list[Any] = list(self.layers)
        for layer in layers:
            layer.prepare()
        if self.config.tie_word_embeddings:
            self._tie_head()
        self._spaces.clear()
        self._plan = (
            self.embed_tokens.lookup,
            self._placing(),
            tuple(layer.run for layer in layers),
            self.norm.scaler.into,
            self.lm_head.ready().product,
            compile_layers(layers, self.dtype),
        )

    def prepare_head(self, *, own_copy: bool) -> None:
        """Make the tied output head from the embedding table as it is now.

        Args:
            own_copy: Whether the head lays out a copy for the fastest kernel; otherwise it reads
                the table itself, which must stay in place.
        """
        table = self.embed_tokens.weight
        self._head_made_of = (table,)
        self.lm_head.tie(table.detach(), own_copy=own_copy)

    def computes_in_place(self) -> bool:
        """Whether the head computes with a weight that may be written to."""
        return self.lm_head.is_in_place

    def compute_in_place(self) -> None:
        """Let the head read its weight, or the embedding table, as it lies: it may be written to.

        From now on also after `prepare`. A table that stayed in the dtype of its file is converted.
        """
        self.lm_head.compute_in_place()
        self.embed_tokens.weight = nn.Parameter(
            self.embed_tokens.weight.detach().to(self.dtype), requires_grad=False
        )
        self.prepare()

    def stays_as_stored(self) -> str | None:
        """The table of a tied head, where a kernel of the head's own wins: look-ups read little."""
        sizes = self.config.vocab_size, self.config.hidden_size
        if not (self.config.tie_word_embeddings and is_laid_out_anew(self.dtype, *sizes)):
            return None
        return "embed_tokens.weight"

    def use_stored(self, stored: Tensor) -> None:
        """Give the head its own copy of the embedding table, and look rows up in another one.

        The copy is laid out for the fastest kernel. From then on the table is read a few rows a
        step, so it may stay in whatever dtype the file has.

        Args:
            stored: ``[V, E]``, of the same content as the table, or the table itself.
        """
        self.prepare_head(own_copy=True)
        self.embed_tokens.weight = nn.Parameter(stored, requires_grad=False)
        self.embed_tokens.prepare()
        self._head_made_of = (self.embed_tokens.weight,)

    def embed(self, input_ids: Tensor) -> Tensor:
        """Rows of the embedding table for ids ``[B, S]``, as ``[B, S, E]``."""
        return self.embed_tokens(input_ids)

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
            embeddings: ``[B, S, E]``, in the model's dtype; left as they are.
            positions: Position of each token in its text, ``[B, S]`` or ``[1, S]``, int64.
            attention: Does the attention.
            collect: Gets the embeddings and each layer's output, ``[B, S, E]``; the last one
                normalised, so L + 1 tensors.
            depth: Run only so many of the first layers; ``None``: all.

        Returns:
            ``[B, S, E]``.
        """
        batch, length, width = embeddings.shape
        stream = embeddings.reshape(-1, width).clone()
        self._run(stream, positions, batch, attention, collect, depth)
        normed = self.norm.scaler.into(stream, stream).view(batch, length, width)
        if collect is not None:
            collect.append(normed)
        return normed

    def project(self, hidden: Tensor) -> Tensor:
        """Logits ``[..., V]`` of normalised hidden states ``[..., E]``, in the model's dtype."""
        product = self._ready()[4]
        return product(hidden.reshape(-1, hidden.shape[-1])).view(*hidden.shape[:-1], -1)

    def decode(self, input_ids: Tensor, positions: Tensor, attention: AttentionContext) -> Tensor:
        """Logits ``[B, V]`` after the last of ids ``[B, S]``; the hot path, without checks.

        Args:
            input_ids: ``[B, S]``, int64.
            positions: ``[B, S]`` or ``[1, S]``, int64.
            attention: Does the attention; its cache grows by S positions.
        """
        lookup, _, _, norm, product, _ = self._plan or self._ready()
        batch = input_ids.shape[0]
        stream = lookup(input_ids.reshape(-1))  # [N, E]
        self._run(stream, positions, batch, attention, None)
        if stream.shape[0] != batch:
            stream = stream.view(batch, -1, stream.shape[1])[:, -1].contiguous()
        return product(norm(stream, stream))

    def decode_packed(
        self,
        input_ids: Tensor,
        positions: Tensor,
        last: Tensor,
        attention: AttentionContext,
        *,
        is_recorded: bool = False,
    ) -> Tensor:
        """Logits ``[R, V]`` after some of the tokens of packed rows.

        Args:
            input_ids: The tokens of all rows, one row after another, ``[N]``, int64.
            positions: Position of each token in its text, ``[N]``, int64.
            last: Which tokens' logits are wanted, ``[R]``, int64; R may be 0.
            attention: Does the attention; the rows are laid out.
            is_recorded: Whether what this asks of the device will be repeated without it.

        Raises:
            InvalidRequestError: A position is beyond `packed_length`.
        """
        lookup, _, _, norm, product, _ = self._plan or self._ready()
        limit = self.packed_length
        if limit is not None and int(positions.max()) >= limit:
            raise InvalidRequestError(
                "positions", int(positions.max()), f"packed rows end at {limit} tokens"
            )
        # What autograd does for each operator, to no use, is a tenth of a short step's time. The
        # head is outside: users' processors may write to what they are given. A recording costs
        # no time for autograd, and its tensors must be such as can be written to from outside.
        with torch.inference_mode(not is_recorded):
            stream = lookup(input_ids)  # [N, E]
            self._run(stream, positions, 1, attention, None)
            if last.shape[0] != stream.shape[0]:
                stream = stream.index_select(0, last)
            normed = norm(stream, stream)
        return product(normed)

    def take_workspace(self, tokens: int) -> object:
        """Give away the memory that steps of so many tokens have used, for the next to get other.

        Who recorded such a step keeps it: the recording goes on writing there.
        """
        return self._spaces.pop(tokens, None)

    def ignored_weights(self) -> tuple[str, ...]:
        """Regular expressions of names that checkpoints carry and the model does not need."""
        is_tied = self.config.tie_word_embeddings
        return (*self.unneeded, r"^lm_head\.weight$") if is_tied else self.unneeded

    def weight_map(self) -> tuple[WeightRule, ...]:
        """What each parameter is made of, in the order of computation."""
        config = self.config
        table = [config.vocab_size], config.hidden_size
        rules = module_rules("embed_tokens", [self.stack_prefix + self.table_name], *table)
        rules += self._stack_rules()
        if not config.tie_word_embeddings:
            rules += module_rules("lm_head", ["lm_head"], *table)
        return tuple(rules)

    def _stack_rules(self) -> list[WeightRule]:
        """What lies between the embedding table and the output head is made of."""
        depth = self.config.num_hidden_layers
        rules = [rule for index in range(depth) for rule in self._layer_rules(index)]
        return rules + module_rules("norm", ["model.norm"], [self.config.hidden_size])

    def _layer_rules(self, index: int) -> list[WeightRule]:
        config = self.config
        hidden, width, size = config.hidden_size, config.intermediate_size, config.head_dim
        queries, values = config.num_attention_heads * size, config.num_key_value_heads * size
        rules: list[WeightRule] = []

        def add(
            ours: str, theirs: str, rows: list[int], columns: int | None = None, bias: bool = False
        ) -> None:
            sources = [f"model.layers.{index}.{name}" for name in theirs.split()]
            rules.extend(module_rules(f"layers.{index}.{ours}", sources, rows, columns, bias=bias))

        add("input_norm", "input_layernorm", [hidden])
        qkv = "self_attn.q_proj self_attn.k_proj self_attn.v_proj"
        add("qkv", qkv, [queries, values, values], hidden, config.attention_bias)
        if self.qk_norm:
            add("q_norm", "self_attn.q_norm", [size])
            add("k_norm", "self_attn.k_norm", [size])
        add("output", "self_attn.o_proj", [hidden], queries, config.attention_output_bias)
        add("post_norm", "post_attention_layernorm", [hidden])
        add("gate_up", "mlp.gate_proj mlp.up_proj", [width, width], hidden, config.mlp_bias)
        add("down", "mlp.down_proj", [hidden], width, config.mlp_bias)
        return rules

    def _make_layer(self, index: int, dtype: torch.dtype) -> nn.Module:
        return DecoderLayer(self.config, index, qk_norm=self.qk_norm, dtype=dtype)

    def _make_norm(self, dtype: torch.dtype) -> RMSNorm | LayerNorm:
        return RMSNorm(self.config.hidden_size, self.config.rms_norm_eps, dtype=dtype)

    def _make_positions(self, dtype: torch.dtype) -> None:
        """Make what tells positions apart."""
        self._rotary = Rotary(self.config, dtype)

    def _make_space(self, tokens: int, like: Tensor) -> Any:
        """Memory that the layers share for so many tokens."""
        return Workspace(self.config, tokens, like)

    def _placing(self) -> Callable[[Tensor, Tensor], tuple[Tensor, ...]]:
        """What is done with the positions ``[N]`` of the stream ``[N, E]``.

        Its results are the arguments of each layer's `run` between the stream and the attention.
        """
        rotary = self._rotary
        rotary.dtype = self.dtype
        return lambda _, positions: rotary.rows(positions)

    def _tie_head(self) -> None:
        """Let the head compute with the embedding table, on a copy of its own if that is small."""
        table = self.embed_tokens.weight
        made_of = self._head_made_of
        if self.lm_head.kernel is not None and made_of and made_of[0] is table:
            return
        others = sum(
            module.in_features * module.out_features
            for module in self.modules()
            if isinstance(module, Linear) and module is not self.lm_head
        )
        share = table.numel() / (table.numel() + others)
        small = share <= HEAD_COPY_SHARE or table.nbytes <= HEAD_COPY_BYTES
        is_copied = not self.lm_head.is_in_place and (small or table.dtype != self.dtype)
        self.prepare_head(own_copy=is_copied)

    def _run(
        self,
        stream: Tensor,
        positions: Tensor,
        batch: int,
        attention: AttentionContext,
        collect: list[Tensor] | None,
        depth: int | None = None,
    ) -> None:
        """Send the stream ``[N, E]`` through the layers, in place."""
        _, place, layers, _, _, compiled = self._plan or self._ready()
        tokens = stream.shape[0]
        if positions.numel() != tokens:
            positions = positions.expand(batch, -1)
        placed = place(stream, positions.reshape(-1))
        attention.begin(batch, tokens // batch)
        pages = attention.compiled
        if compiled is not None and pages is not None and collect is None and depth is None:
            compiled.run(stream, *placed, pages)
            return
        # Taken out while in use, so that calls from two threads never share one.
        space = self._spaces.pop(tokens, None)
        if space is None:
            # Memory made in inference mode could not be written to outside of it later on.
            with torch.inference_mode(False):
                space = self._make_space(tokens, stream)
        for run in layers if depth is None else layers[:depth]:
            if collect is not None:
                collect.append(stream.view(batch, -1, stream.shape[1]).clone())
            run(stream, *placed, attention, space)
        if tokens <= KEPT_TOKENS:
            self._spaces[tokens] = space
