"""The documented ``pipeline("text-generation")``: texts, lists and chats in, text out.

A thin layer over ``model.generate`` and the tokenizer. For many concurrent requests use `AsyncLLM`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from asyncgen.checkpoints.weight_loading import check_dtype
from asyncgen.errors import InvalidRequestError, UnsupportedModelError
from asyncgen.generation.config.rules import Range, require, switch
from asyncgen.reference.auto import AutoModelForCausalLM, AutoTokenizer
from asyncgen.reference.from_pretrained_options import check_device_map
from asyncgen.runtime.transfer import host_ints
from asyncgen.text.foreign_tokenizer import own_tokenizer

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from asyncgen.families.config import EditableConfig
    from asyncgen.generation.config import GenerationConfig
    from asyncgen.reference.load_model import PreTrainedModel
    from asyncgen.text.tokenizer import Tokenizer
    from asyncgen.types import Message


TASK = "text-generation"

Answers: TypeAlias = list[dict[str, Any]]

_DEFAULTS = {"max_new_tokens": 256, "do_sample": True, "temperature": 0.7}
"""Defaults of values that neither the call nor the model's configuration sets."""

_WITH_TEXT = {"return_tensors", "return_full_text", "return_text"}


_OWN = frozenset(
    """
    return_full_text return_tensors return_text clean_up_tokenization_spaces skip_special_tokens
    prefix handle_long_generation stop_sequence truncation add_special_tokens
    continue_final_message tokenizer_encode_kwargs tools documents batch_size num_workers
    """.split()
)
"""Keywords of a call that are no parameters of ``generate``."""


@dataclass(frozen=True, slots=True)
class _Input:
    """One prompt.

    Attributes:
        prompt: A text, or messages.
        ids: Its token ids; none for an empty text.
        continues: The answer continues the last message.
    """

    prompt: str | Sequence[Message]
    ids: list[int]
    continues: bool = False


class TextGenerationPipeline:
    """Continues texts and chats; made by :func:`pipeline`.

    Attributes:
        model: The model.
        tokenizer: Its tokenizer.
        task: ``"text-generation"``.
        generation_config: Defaults of calls: those of the model; values that it does not set are
            256 new tokens, sampling and a temperature of 0.7.
        assistant_model: Draft model, or ``None``.
        assistant_tokenizer: Its tokenizer if it is another one, or ``None``.
    """

    task = TASK

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Tokenizer,
        *,
        assistant_model: PreTrainedModel | None = None,
        assistant_tokenizer: Tokenizer | None = None,
        **params: Any,
    ) -> None:
        """Keep the common arguments of calls.

        Args:
            model: A model without an encoder.
            tokenizer: Its tokenizer, also an object of transformers or of `tokenizers`.
            assistant_model: Draft model.
            assistant_tokenizer: Its tokenizer, if it is another one.
            **params: Keywords of every call; see :meth:`__call__`.

        Raises:
            UnsupportedModelError: The model has an encoder.
            InvalidRequestError: A keyword contradicts another.
        """
        if getattr(model.config, "is_encoder_decoder", False):
            raise UnsupportedModelError(
                f"{model.config.model_type!r} has an encoder, and {TASK!r} is for models without; "
                "call `model.generate`"
            )
        self.model, self.tokenizer = model, own_tokenizer(tokenizer)
        self.assistant_model, self.assistant_tokenizer = assistant_model, assistant_tokenizer
        self.generation_config = copy.deepcopy(model.generation_config)
        defaults: dict[str, Any] = dict(_DEFAULTS)
        if self.generation_config.max_length is not None:
            del defaults["max_new_tokens"]
        if self.generation_config.do_sample is False:
            del defaults["temperature"]
        if self.generation_config.temperature == 0:  # as a default it asks for greedy decoding
            del defaults["do_sample"]
        self.generation_config.update(defaults_only=True, **defaults)
        pad_id = self.tokenizer.pad_token_id
        if self.generation_config.pad_token_id is None and pad_id is not None:
            self.generation_config.pad_token_id = pad_id
        _check_own(params)
        self._params = params

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.model.device

    def __call__(self, text_inputs: Any, **kwargs: Any) -> Any:
        """Continue prompts.

        Args:
            text_inputs: A text, messages, a list of either, or an iterator of texts.
            **kwargs: ``return_full_text`` (the prompt too, by default yes), ``return_tensors``
                (``generated_token_ids`` instead of text), ``skip_special_tokens`` and
                ``clean_up_tokenization_spaces`` of the decoding, ``prefix`` of each prompt,
                ``handle_long_generation="hole"`` (cut the prompt's beginning off where it is too
                long), ``stop_sequence``, ``truncation``, ``add_special_tokens`` and
                ``tokenizer_encode_kwargs`` of the encoding, ``continue_final_message``, ``tools``
                and ``documents`` of chats, ``batch_size`` (prompts that are padded to one length
                and computed together; 1 by default). All others go to ``model.generate``.

        Returns:
            For a prompt a list of ``num_return_sequences`` results ``{"generated_text": …}``: the
            text, or for messages the messages with the answer behind them (the answer alone with
            ``return_full_text=False``). For a list of prompts a list of such lists, for an iterator
            an iterator of them.

        Raises:
            InvalidRequestError: A prompt that is none, or a keyword that contradicts another.
            ValueError: As ``model.generate``.
        """
        params = {**self._params, **kwargs}
        own = {name: params.pop(name) for name in _OWN & params.keys()}
        _check_own(own)
        size = own.get("batch_size") or 1
        if isinstance(text_inputs, str) or _is_chat(text_inputs):
            (answers,) = self._answers(iter([text_inputs]), 1, own, params)
            return answers
        if isinstance(text_inputs, Iterator):
            return self._listed(text_inputs, size, own, params)
        if not isinstance(text_inputs, list | tuple):
            raise _no_prompt("text_inputs", text_inputs)
        for place, prompt in enumerate(text_inputs):
            _check_prompt(f"text_inputs[{place}]", prompt)
        return list(self._listed(iter(text_inputs), size, own, params))

    def _listed(
        self, prompts: Iterator[Any], size: int, own: Mapping[str, Any], params: dict[str, Any]
    ) -> Iterator[Answers]:
        """Return the results of several prompts; with a seed, the same samples as the reference."""
        # There a data loader draws one number before it iterates over the prompts.
        torch.empty((), dtype=torch.int64, device="cpu").random_()
        yield from self._answers(prompts, size, own, params)

    def _answers(
        self, prompts: Iterator[Any], size: int, own: Mapping[str, Any], params: dict[str, Any]
    ) -> Iterator[Answers]:
        """Yield the results of each prompt, computed ``size`` at a time."""
        while batch := list(islice(prompts, size)):
            inputs = [self._encode(prompt, own, params) for prompt in batch]
            yield from self._generate(inputs, own, params)

    def _encode(
        self, prompt: str | Sequence[Message], own: Mapping[str, Any], params: Mapping[str, Any]
    ) -> _Input:
        _check_prompt("text_inputs", prompt)
        options = dict(own.get("tokenizer_encode_kwargs") or {})
        if own.get("truncation"):
            options |= {"truncation": True, "max_length": params.get("max_length")}
        if isinstance(prompt, str):
            if own.get("add_special_tokens") is not None:
                options["add_special_tokens"] = own["add_special_tokens"]
            encoded = self.tokenizer((own.get("prefix") or "") + prompt, **options)
            ids, continues = encoded["input_ids"], False
        else:
            stated = own.get("continue_final_message")
            continues = prompt[-1].get("role") == "assistant" if stated is None else stated
            ids = self.tokenizer.apply_chat_template(
                prompt,
                tools=own.get("tools"),
                documents=own.get("documents"),
                add_generation_prompt=not continues,
                continue_final_message=continues,
                **options,
            )
        if own.get("handle_long_generation") == "hole":
            ids = self._shortened(ids, params)
        return _Input(prompt, ids, continues)

    def _shortened(self, ids: list[int], params: Mapping[str, Any]) -> list[int]:
        """Cut the beginning of a prompt, so that the new tokens fit after it."""
        limit = self.tokenizer.model_max_length
        length, config = params.get("max_length"), params.get("generation_config")
        new = params.get("max_new_tokens")
        if new is None and length is not None:
            new = max(length - len(ids), 0)
        if new is None:
            new = (config or self.generation_config).max_new_tokens or 0
        if len(ids) + new <= limit:
            return ids
        if new >= limit:
            allowed = f"{new} new tokens leave no room for a prompt: the model takes {limit}"
            raise InvalidRequestError("handle_long_generation", "hole", allowed)
        return ids[new - limit :]

    def _generate(
        self, inputs: Sequence[_Input], own: Mapping[str, Any], params: dict[str, Any]
    ) -> Iterator[Answers]:
        """Yield the results of prompts that are computed together."""
        arguments: dict[str, Any] = {"generation_config": self._base(params), **params}
        stop = own.get("stop_sequence")
        if stop is not None:
            arguments["stop_strings"] = stop
        if arguments.get("stop_strings") is not None or arguments.get("token_healing"):
            arguments.setdefault("tokenizer", self.tokenizer)
        if self.assistant_model is not None:
            arguments.setdefault("assistant_model", self.assistant_model)
            if self.assistant_tokenizer is not None:
                arguments.setdefault("assistant_tokenizer", self.assistant_tokenizer)
                arguments.setdefault("tokenizer", self.tokenizer)
        rows = [each.ids for each in inputs]
        ids, mask = self._padded(rows)
        if ids is not None:
            arguments |= {"inputs": ids.to(self.device), "attention_mask": mask.to(self.device)}
        sequences = self.model.generate(**arguments)
        if not isinstance(sequences, torch.Tensor):
            allowed = "a pipeline returns text; call `model.generate` for more"
            raise InvalidRequestError("return_dict_in_generate", True, allowed)
        each = len(sequences) // len(inputs)
        for place, given in enumerate(inputs):
            length = 0 if ids is None else ids.shape[1]
            found = sequences[place * each : (place + 1) * each].tolist()
            yield [self._result(given, length, row, own) for row in found]

    def _base(self, params: Mapping[str, Any]) -> GenerationConfig:
        """Return the defaults of a call; its ``max_length`` replaces the default of new tokens."""
        if params.get("max_length") is None or "max_new_tokens" in params:
            return self.generation_config
        config = copy.deepcopy(self.generation_config)
        config.max_new_tokens = None
        return config

    def _padded(self, rows: Sequence[list[int]]) -> tuple[Any, Any]:
        """Return ids and mask ``[B, S]``, padded on the left; ``None`` for one empty prompt."""
        if rows == [[]]:
            return None, None
        longest = max(map(len, rows))
        missing = [longest - len(row) for row in rows]
        pad = self.tokenizer.pad_token_id
        if pad is None and any(missing):
            allowed = "prompts of other lengths need padding; set `pipe.tokenizer.pad_token`"
            raise InvalidRequestError("batch_size", len(rows), allowed)
        ids = [[pad or 0] * count + row for count, row in zip(missing, rows, strict=True)]
        mask = [[0] * count + [1] * len(row) for count, row in zip(missing, rows, strict=True)]
        return host_ints(ids), host_ints(mask)

    def _result(
        self, given: _Input, prompt_length: int, row: list[int], own: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the result of one sequence."""
        if own.get("return_tensors"):
            return {"generated_token_ids": row}
        skip = own.get("skip_special_tokens", True)
        clean = own.get("clean_up_tokenization_spaces")
        answer = self.tokenizer.decode(row[prompt_length:], skip, clean)
        if own.get("return_full_text") is False:
            return {"generated_text": answer}
        if isinstance(given.prompt, str):
            return {"generated_text": given.prompt + answer}
        messages: list[Any] = list(given.prompt)
        if given.continues:
            last = messages[-1]
            messages[-1] = {**last, "content": last["content"] + answer}
        else:
            messages.append({"role": "assistant", "content": answer})
        return {"generated_text": messages}


def pipeline(
    task: str | None = None,
    model: str | os.PathLike[str] | PreTrainedModel | None = None,
    config: EditableConfig | None = None,
    tokenizer: str | os.PathLike[str] | Tokenizer | None = None,
    *,
    revision: str | None = None,
    use_fast: bool = True,
    token: str | bool | None = None,
    device: int | str | torch.device | None = None,
    device_map: str | int | torch.device | dict[str, Any] | None = None,
    dtype: str | torch.dtype | None = "auto",
    torch_dtype: str | torch.dtype | None = None,
    trust_remote_code: bool | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    assistant_model: str | os.PathLike[str] | PreTrainedModel | None = None,
    assistant_tokenizer: str | os.PathLike[str] | Tokenizer | None = None,
    **kwargs: Any,
) -> TextGenerationPipeline:
    """Load a model and its tokenizer as a pipeline.

    Args:
        task: ``"text-generation"``, the only one.
        model: ``"demo"``, a folder, the id of a repository, or a model that is loaded.
        config: As in ``from_pretrained``.
        tokenizer: Its tokenizer or the source of that; ``None``: the one beside the model.
        revision: Branch, tag or commit on the hub.
        use_fast: There are no slow tokenizers, so ``False`` is an error.
        token: Access token for the hub.
        device: Device of the computation: -1 is the CPU, another number that GPU; ``None`` is CUDA
            if available, or the device of the model.
        device_map: ``"auto"``, or one device, in place of ``device``.
        dtype: Dtype of the computation; ``"auto"``: that of the checkpoint.
        torch_dtype: The older name of ``dtype``.
        trust_remote_code: No remote code is run, so ``True`` is an error.
        model_kwargs: More keywords of ``from_pretrained``.
        assistant_model: A smaller model that drafts for this one, or its source.
        assistant_tokenizer: Its tokenizer; ``None``: the one beside it, if its vocabulary differs.
        **kwargs: Keywords of every call; see :class:`TextGenerationPipeline`.

    Raises:
        InvalidRequestError: Another task, no model, or an argument that cannot be honoured.
        ModelLoadError: The checkpoint is missing, or cannot be read.
        UnsupportedModelError: Its family is unknown, or it has an encoder.
    """
    if task not in (None, TASK):
        raise InvalidRequestError("task", task, f"the only one is {TASK!r}")
    if model is None:
        raise InvalidRequestError("model", None, 'name one, such as model="demo"')
    if device is not None and device_map is not None:
        raise InvalidRequestError("device_map", device_map, "`device` is given too; give one")
    for name in ("feature_extractor", "image_processor", "video_processor", "processor",
                 "pipeline_class", "framework"):  # fmt: skip
        value = kwargs.pop(name, None)
        if value not in (None, "pt"):
            raise InvalidRequestError(name, value, f"{TASK!r} has none; leave it out")
    shared: dict[str, Any] = {
        "revision": revision,
        "token": token,
        "trust_remote_code": trust_remote_code,
    }
    place = device_map if device is None else _device(device)
    how: dict[str, Any] = {
        "dtype": dtype if torch_dtype is None else torch_dtype,
        "device_map": "auto" if place is None else place,
        "token": token,
        "trust_remote_code": trust_remote_code,
    }
    found: Any = model
    own: Any = tokenizer if tokenizer is not None else model
    if _is_source(found):
        loaded = AutoModelForCausalLM.from_pretrained(
            found, **{**how, "revision": revision, "config": config, **(model_kwargs or {})}
        )
    else:
        for name, given in (("config", config), ("model_kwargs", model_kwargs)):
            if given is not None:
                allowed = "the model object is loaded already; leave it out"
                raise InvalidRequestError(name, given, allowed)
        loaded = found if place in (None, "auto") else found.to(check_device_map(place))
        if how["dtype"] not in (None, "auto"):
            loaded = loaded.to(check_dtype(how["dtype"]))
    if own is model and not _is_source(own):
        allowed = "a model object comes without one; pass its tokenizer"
        raise InvalidRequestError("tokenizer", None, allowed)
    if _is_source(own):
        if tokenizer is not None:
            shared["revision"] = None  # a revision belongs to the model's repository
        own = AutoTokenizer.from_pretrained(own, use_fast=use_fast, **shared)
    helper, its = _assistant(assistant_model, assistant_tokenizer, own, how)
    return TextGenerationPipeline(
        loaded, own, assistant_model=helper, assistant_tokenizer=its, **kwargs
    )


def _assistant(model: Any, tokenizer: Any, own: Tokenizer, how: Mapping[str, Any]) -> Any:
    """Load the draft model, and its tokenizer if it is another one."""
    if model is None:
        if tokenizer is not None:
            raise InvalidRequestError("assistant_tokenizer", tokenizer, "needs `assistant_model`")
        return None, None
    if tokenizer is None and _is_source(model):
        tokenizer = model
    if _is_source(tokenizer):
        tokenizer = AutoTokenizer.from_pretrained(tokenizer, token=how["token"])
    if _is_source(model):
        model = AutoModelForCausalLM.from_pretrained(model, **how)
    is_other = tokenizer is not None and tokenizer.get_vocab() != own.get_vocab()
    return model, tokenizer if is_other else None


def _is_source(value: object) -> bool:
    return isinstance(value, str) or hasattr(value, "__fspath__")


def _device(device: int | str | torch.device) -> str | torch.device:
    if isinstance(device, int):
        return "cpu" if device < 0 else f"cuda:{device}"
    return device


def _check_own(own: Mapping[str, Any]) -> None:
    """Refuse keywords that contradict each other, or are of the wrong type."""
    asked = sorted(name for name in _WITH_TEXT if own.get(name) is not None)
    if own.get("return_text") is not None or own.get("return_tensors"):
        for name in asked[1:]:
            allowed = f"it contradicts `{asked[0]}`; give one of them"
            raise InvalidRequestError(name, own[name], allowed)
    for name in ("return_full_text", "return_tensors", "return_text", "truncation",
                 "add_special_tokens", "continue_final_message", "skip_special_tokens",
                 "clean_up_tokenization_spaces"):  # fmt: skip
        if own.get(name) is not None:
            require(name, own[name], switch)
    if own.get("batch_size") is not None:
        require("batch_size", own["batch_size"], Range(1, whole=True))
    strategy = own.get("handle_long_generation")
    if strategy not in (None, "hole"):
        raise InvalidRequestError("handle_long_generation", strategy, "use None or 'hole'")


def _is_chat(value: object) -> bool:
    is_list = isinstance(value, list | tuple) and len(value) > 0
    return is_list and all(isinstance(one, Mapping) for one in value)  # type: ignore[attr-defined]


def _check_prompt(place: str, prompt: object) -> None:
    if not isinstance(prompt, str) and not _is_chat(prompt):
        raise _no_prompt(place, prompt)


def _no_prompt(place: str, value: object) -> InvalidRequestError:
    allowed = "give a text, messages with `role` and `content`, or a list of either"
    return InvalidRequestError(place, value, allowed)
