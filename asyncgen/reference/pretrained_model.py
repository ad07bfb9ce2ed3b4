"""The documented model class: call it, generate, save and load.

:class:`PreTrainedModel` is a thin layer over its ``core``, a plain module of ``asyncgen.models``
that computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from asyncgen.checkpoints.embedding_settings import EmbeddingSettings
from asyncgen.checkpoints.hub import checked_folder
from asyncgen.checkpoints.saved_folder import SavedFolder
from asyncgen.checkpoints.saving import save_weights, shard_bytes
from asyncgen.checkpoints.tensor_reader import find_broken, tell_broken
from asyncgen.checkpoints.weight_loading import check_dtype
from asyncgen.engine.setup.model_in_use import require_unattached
from asyncgen.errors import InvalidRequestError, ModelLoadError, UnsupportedModelError
from asyncgen.families.arch.registry import FAMILIES
from asyncgen.families.config.editable_config import EditableConfig
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.config.rules import Range, require
from asyncgen.generation.generate.mixin import GenerationMixin
from asyncgen.generation.outputs import CausalLMOutputWithPast
from asyncgen.models.contexts import dense_context
from asyncgen.models.embeddings import (
    InputEmbeddings,
    OutputEmbeddings,
    check_scale,
    check_table,
    count_parameters,
    replace_table,
    resized,
    scale_of,
)
from asyncgen.reference.compiling import is_traced, traced
from asyncgen.reference.continuous_batching.mixin import ContinuousMixin
from asyncgen.reference.forward_arguments import (
    call_settings,
    check_cache,
    embeddings_of,
    loss_of,
    place_tokens,
    states_to_project,
    wrong_shape,
)
from asyncgen.reference.from_pretrained_options import ModelOptions, model_arguments, shows
from asyncgen.reference.model_loader import Loaded, load_core

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from typing import Unpack

    from asyncgen.cache.caches import Cache
    from asyncgen.families.config import ModelConfig
    from asyncgen.models.decoder import DecoderLM


class PreTrainedModel(GenerationMixin, ContinuousMixin, nn.Module):
    """A causal language model that is ready to run.

    It computes no gradients and stays in evaluation mode. Weights are laid out for speed, so
    ``parameters()`` does not show all of them; ``to`` moves and converts them as usual. What torch
    writes to one of them takes effect with the next forward pass, and in an open engine before its
    next step.

    Attributes:
        core: The module that computes.
        config: Content of ``config.json``. Token ids, the defaults of a call and further attributes
            can be set; the values that define the network are read-only.
        generation_config: Defaults of :meth:`generate`.
        name_or_path: Source of the model.
        embedding_settings: Settings of embeddings.
        model_type: The family of this class; ``None`` for any.
        has_encoder: Models of this class have an encoder.
    """

    model_type: ClassVar[str | None] = None
    has_encoder: ClassVar[bool] = False

    def __init__(
        self,
        core: DecoderLM,
        generation_config: GenerationConfig | None = None,
        name_or_path: str = "",
    ) -> None:
        """Wrap a module with loaded weights.

        Args:
            core: The module.
            generation_config: Defaults of ``generate``; ``None`` derives them from the model's
                configuration.
            name_or_path: Source of the model.
        """
        super().__init__()
        self.core = core
        self.config = EditableConfig(core.config)
        if generation_config is None:
            generation_config = GenerationConfig.from_model_config(core.config)
        self.generation_config = generation_config
        self.name_or_path = name_or_path
        self.embedding_settings = EmbeddingSettings()
        super().train(False)

    @classmethod
    @shows(ModelOptions)
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        **options: Unpack[ModelOptions],
    ) -> Self:
        """Load a model of this class.

        Args:
            pretrained_model_name_or_path: ``"demo"``, a folder, or the id of a repository.
            **options: See `from_pretrained_options.ModelOptions`. Anything else is an error
                that names it, unless it is off.

        Raises:
            InvalidRequestError: An argument is not supported.
            ModelLoadError: The checkpoint is missing, or cannot be read.
            UnsupportedModelError: It is a model of another or an unknown family.
        """
        where = f"{cls.__name__}.from_pretrained"
        arguments, values, config = model_arguments(options, where)
        loaded = load_core(pretrained_model_name_or_path, check=cls._check_family, **arguments)
        return cls.from_loaded(loaded).configured(values, config)

    @classmethod
    def from_loaded(cls, loaded: Loaded) -> Self:
        """Wrap a loaded model, and run one token to detect NaN weights.

        The step takes a few hundredths of the loading time; a check of every weight would take a
        fifth.

        Args:
            loaded: A loaded model of this class.

        Raises:
            ModelLoadError: A weight that every token uses is NaN. (Queries and keys, whose NaN
                attention hides, were checked when they were read.)
        """
        model = cls(loaded.core, loaded.generation_config, loaded.source)
        model.embedding_settings = loaded.embedding_settings
        ids = torch.zeros(1, 1, dtype=torch.int64, device="cpu")
        decoder = {"decoder_input_ids": ids} if loaded.core.family.has_encoder else {}
        logits = model(input_ids=ids, use_cache=False, return_dict=True, **decoder).logits
        if bool(logits.isnan().any()):
            # Without one, the dtype is too narrow for this token only; others may work.
            broken = find_broken(loaded.checkpoint)
            if broken is not None:
                raise ModelLoadError(tell_broken(loaded.checkpoint, broken))
        return model

    def configured(self, values: Mapping[str, Any], config: EditableConfig | None) -> Self:
        """Set values of the configuration from ``from_pretrained``.

        Args:
            values: Values by name.
            config: Another configuration, whose changes are applied.

        Raises:
            InvalidRequestError: It describes another network.
        """
        if config is not None:
            if not config.describes(self.core.config):
                allowed = "it describes another network than the checkpoint holds"
                raise InvalidRequestError("config", config.model_type, allowed)
            values = {**config.changes, **values}
        self.config.update(values)
        return self

    @classmethod
    def _check_family(cls, config: ModelConfig) -> None:
        is_other = cls.model_type not in (None, config.model_type)
        if is_other or config.is_encoder_decoder != cls.has_encoder:
            own = f"of type {cls.model_type!r}"
            if cls.model_type is None:
                own = "with an encoder" if cls.has_encoder else "without an encoder"
            right = FAMILIES[config.model_type].class_name
            raise UnsupportedModelError(
                f"`{cls.__name__}` loads models {own}, and this one is "
                f"{config.model_type!r}; load it with `{right}`, or with an Auto class"
            )

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.core.device

    @property
    def hf_device_map(self) -> dict[str, torch.device]:
        """Device of each part of the model, in the form of ``device_map``: all is on one."""
        return {"": self.device}

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the computation."""
        return self.core.dtype

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode.

        Raises:
            InvalidRequestError: Training was asked for.
        """
        if mode:
            raise InvalidRequestError("mode", mode, "these models run and do not train")
        return super().train(False)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move or convert the model: ``to("cuda")``, ``to(torch.bfloat16)``.

        Args:
            *args: As for `torch.nn.Module.to`.
            **kwargs: As for `torch.nn.Module.to`.

        Returns:
            The model itself.

        Raises:
            InvalidRequestError: An engine runs on it, or it cannot run in that dtype.
        """
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        device = self.device if device is None else device
        dtype = self.dtype if dtype is None else check_dtype(dtype)
        is_here = device.type == self.device.type and device.index in (None, self.device.index)
        if is_here and dtype == self.dtype:
            return self
        require_unattached(self, "to", dtype if is_here else device)
        return super().to(device, dtype)

    def float(self) -> Self:
        """Convert to float32; see :meth:`to`."""
        return self.to(torch.float32)

    def double(self) -> Self:
        """Convert to float64; see :meth:`to`."""
        return self.to(torch.float64)

    def half(self) -> Self:
        """Convert to float16; see :meth:`to`."""
        return self.to(torch.float16)

    def bfloat16(self) -> Self:
        """Convert to bfloat16; see :meth:`to`."""
        return self.to(torch.bfloat16)

    def cpu(self) -> Self:
        """Move to the CPU; see :meth:`to`."""
        return self.to("cpu")

    def cuda(self, device: int | str | torch.device | None = None) -> Self:
        """Move to a GPU; see :meth:`to`."""
        at = f"cuda:{device}" if isinstance(device, int) else device
        return self.to(at or "cuda")

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """Count the parameters; tied ones count once.

        Args:
            only_trainable: Count trainable parameters: these models have none.
            exclude_embeddings: Leave out the tables of tokens, positions and position biases.
        """
        if only_trainable:
            return 0
        return count_parameters(self.core, exclude_embeddings=exclude_embeddings)

    def can_generate(self) -> bool:
        """Return True: `generate` always works."""
        return True

    def get_input_embeddings(self) -> InputEmbeddings:
        """Return the embedding table: call it with ids, or use its ``weight`` ``[V, E]``.

        A call gives what ``inputs_embeds`` takes: scaled rows, in families that scale them.
        """
        return InputEmbeddings(self.core, self._before_opening)

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding table; a tied head uses it, too.

        Args:
            value: An ``nn.Embedding``, or what `get_input_embeddings` of a model returns, with a
                ``weight`` ``[V, E]``. The weight is shared if its dtype and device are the model's.
                With a head that is not tied, V must stay the same. Layers get what a call of the
                module gives: the rows of an ``nn.Embedding`` are not scaled, of any family.

        Raises:
            InvalidRequestError: It is of another type, or an engine runs on the model.
        """
        table = check_table(value, self.core)
        require_unattached(self, "value", type(value).__name__)
        # Its owner may write to it at any time.
        self.core.lm_head.is_in_place |= self.core.config.tie_word_embeddings
        replace_table(self.core, table, row_scale=scale_of(value))
        self.config.describe(self.core.config)

    def get_output_embeddings(self) -> OutputEmbeddings:
        """Return the output head: call it with hidden states, or use its ``weight``."""
        return OutputEmbeddings(self.core, self._before_opening)

    def tie_weights(self) -> None:
        """Do nothing: a tied head always uses the embedding table."""

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> InputEmbeddings:
        """Change the number of ids; table and head keep the rows of the remaining ids.

        Args:
            new_num_tokens: New number of ids; ``None``: no change.
            pad_to_multiple_of: Round up to a multiple of this.
            mean_resizing: Each new row is the mean of the old ones; otherwise torch's generator
                draws them, with the ``initializer_range`` of the configuration.

        Returns:
            The embedding table.

        Raises:
            InvalidRequestError: A number is invalid, or an engine runs on the model.
        """
        size = self.core.config.vocab_size
        for name, value in (
            ("new_num_tokens", new_num_tokens),
            ("pad_to_multiple_of", pad_to_multiple_of),
        ):
            if value is not None:
                require(name, value, Range(1, whole=True))
        wanted = size if new_num_tokens is None else new_num_tokens
        if pad_to_multiple_of is not None:
            wanted = -(-wanted // pad_to_multiple_of) * pad_to_multiple_of
        if wanted == size:
            return self.get_input_embeddings()
        require_unattached(self, "new_num_tokens", wanted)
        std = None if mean_resizing else float(self.config.to_dict().get("initializer_range", 0.02))
        core = self.core
        table = resized(core.embed_tokens.dense_weight().to(core.dtype), wanted, std=std)
        tied = core.config.tie_word_embeddings
        head = None if tied else resized(core.lm_head.dense_weight(), wanted, std=std)
        # New values in the bias of a tied head are zero, as in the reference.
        replace_table(core, table, head, has_mean=mean_resizing and not tied)
        self.config.describe(core.config)
        return self.get_input_embeddings()

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        state_dict: None = None,
        push_to_hub: bool = False,
        max_shard_size: int | str = "50GB",
        safe_serialization: bool = True,
        variant: None = None,
    ) -> None:
        """Save to a folder that this library and the reference can load.

        Writes ``config.json`` with the changes of ``config``, ``generation_config.json`` and the
        weights, in the model's dtype. Weights that were saved there before are replaced.

        Args:
            save_directory: The folder; created if it does not exist.
            is_main_process: ``False`` writes nothing: another process does.
            state_dict: Only the model's weights are saved, so other ones are an error.
            push_to_hub: Nothing is uploaded, so ``True`` is an error.
            max_shard_size: Most bytes of a file of weights, a number or a text such as ``"5GB"``.
            safe_serialization: Only safetensors are written, so ``False`` is an error.
            variant: File names are fixed, so any value is an error.

        Raises:
            InvalidRequestError: An argument is not supported, a value of ``config`` is no JSON,
                ``generation_config`` has flags without effect, or a table of rows that are not
                scaled was set where files of the family hold scaled ones.
        """
        for name, value, allowed in (
            ("state_dict", state_dict, "the model's own weights are saved; leave it out"),
            ("push_to_hub", push_to_hub or None, "upload the folder with the hub's tool"),
            ("safe_serialization", safe_serialization and None, "only safetensors are written"),
            ("variant", variant, "files have one set of names; save to another folder"),
        ):
            if value is not None:
                raise InvalidRequestError(name, value, allowed)
        shard_bytes(max_shard_size)
        if not is_main_process:
            return
        content = self.config.to_file(
            str(self.dtype).removeprefix("torch."), self.core.family.class_name
        )
        self.generation_config.validate(strict=True)
        check_scale(self.core)
        with SavedFolder(checked_folder(save_directory)) as folder:
            folder.add("config.json", content)
            saved = self.generation_config.to_json_string(keys_to_pop=["compile_config"])
            folder.add("generation_config.json", saved)
            save_weights(self.core, folder, max_shard_size)

    def _before_opening(self) -> None:
        require_unattached(self, "weight", "to be written to", unless_paused=True)

    @torch.no_grad()
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        cache_position: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        token_type_ids: Tensor | None = None,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Run the model once.

        Args:
            input_ids: Token ids ``[B, S]``; or give ``inputs_embeds``.
            attention_mask: ``[B, P + S]`` with P positions in the cache; zero at padding, which
                is masked.
            position_ids: ``[B, S]`` or ``[1, S]``. By default they continue those of the cache;
                with a mask only its tokens count, as in ``generate``.
            past_key_values: Cache to continue; it grows by S positions. Behind a `SinkCache` a mask
                may also be of the whole text, and positions are those in the cache.
            inputs_embeds: Embeddings ``[B, S, E]`` instead of ids, as `get_input_embeddings` gives
                them.
            labels: Ids ``[B, S]`` for the loss, each compared with the position before it; -100 is
                ignored.
            use_cache: Return a cache, a new one if none was given. For ``None``, here and in the
                next three, ``config`` has the default: yes, no, no, yes.
            output_attentions: Return attention weights; disables the fast kernels.
            output_hidden_states: Return the output of every layer.
            return_dict: ``False`` for a tuple.
            cache_position: ``[S]``; must be the positions that follow the cache.
            logits_to_keep: Number of last positions with logits, 0 for all; or indices of
                positions.
            token_type_ids: Types ``[B, S]`` of the tokens, for models with types: GPT-2 adds the
                embeddings of these ids.

        Returns:
            Logits ``[B, S or fewer, V]`` in the model's dtype, the cache, and requested outputs.

        Raises:
            InvalidRequestError: Arguments contradict each other, or have a wrong shape.
        """
        if is_traced():
            # A compiler adds names with underscores to them.
            given = {name: value for name, value in locals().items() if name[0] != "_"}
            return traced(given.pop("self"), given)
        use_cache, output_attentions, output_hidden_states, return_dict = call_settings(
            self.config, use_cache, output_attentions, output_hidden_states, return_dict
        )
        embeddings = embeddings_of(self.core, input_ids, inputs_embeds)
        if token_type_ids is not None:
            embeddings = embeddings + self._types(token_type_ids, embeddings)
        past = check_cache(past_key_values)
        mask, positions = place_tokens(
            self.core,
            past,
            embeddings,
            mask=attention_mask,
            position_ids=position_ids,
            cache_position=cache_position,
        )
        collected: list[Tensor] | None = [] if output_hidden_states else None
        attentions: list[Tensor] | None = [] if output_attentions else None
        attention = dense_context(self.core, past, mask, collect_attentions=attentions)
        hidden = self.core.hidden(embeddings, positions, attention, collected)
        logits = self.core.project(states_to_project(hidden, logits_to_keep))
        output = CausalLMOutputWithPast(
            loss=loss_of(logits, labels, shift=1),
            logits=logits,
            past_key_values=past if use_cache else None,
            hidden_states=None if collected is None else tuple(collected),
            attentions=None if attentions is None else tuple(attentions),
        )
        return output if return_dict else output.to_tuple()

    def _types(self, token_type_ids: Tensor, embeddings: Tensor) -> Tensor:
        """Return the summand of token types for embeddings ``[B, S, E]``: ``[1 or B, S, E]``."""
        batch, length, _ = embeddings.shape
        if not self.core.family.has_token_types:
            name = self.core.family.model_type
            allowed = f"a {name} model has no types of tokens; leave it out"
            raise InvalidRequestError("token_type_ids", tuple(token_type_ids.shape), allowed)
        if token_type_ids.shape not in ((batch, length), (1, length)):
            raise wrong_shape("token_type_ids", token_type_ids, f"[{batch}, {length}]")
        return embeddings_of(self.core, token_type_ids, None)
