"""Convert text to token ids and back, with the `tokenizers` library.

A :class:`Tokenizer` is read from the folder of a checkpoint. ``tokenizer.json`` alone decides how
text is split and which special tokens frame it; the other files give special tokens their roles
and contain the chat template. Knows nothing of models, devices and threads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeGuard, overload

from tokenizers.models import BPE

from asyncgen.checkpoints.hub import checked_folder
from asyncgen.checkpoints.saved_folder import plain_name
from asyncgen.errors import InvalidRequestError
from asyncgen.text.batch_encoding import (
    BatchEncoding,
    Padding,
    Side,
    check_side,
    collate,
    pack_rows,
    pad_rows,
    rounded_up,
)
from asyncgen.text.chat_methods import ChatMethods
from asyncgen.text.response_template.tokenizer_methods import ResponseMethods
from asyncgen.text.setting_kinds import NO_MAX_LENGTH
from asyncgen.text.tokenizer_files import TokenizerSettings, read_tokenizer, write_tokenizer
from asyncgen.text.tokenizer_state import steps_of
from asyncgen.text.tokenizer_work import check_runs, squares_of
from asyncgen.text.vocabulary import Vocabulary, as_ids, as_rows, encoding_error, library_error

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    import torch
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Backend

    from asyncgen.text.content_guard import SpecialTokensInContent

__all__ = ["BatchEncoding", "Tokenizer"]

TokenIds: TypeAlias = "int | Sequence[int] | torch.Tensor"

_LONG = 200
"""Least characters or tokens for the library's batches, which release the GIL."""

_PADS = (True, "longest", "max_length")

_SPACED_MARKS = re.compile(r" (?=[.?!,]|n't|'(?:m|s|ve|re)\b)")


class Tokenizer(ChatMethods, ResponseMethods, Vocabulary):
    """Text to token ids and back.

    Encoding and decoding may be called from several threads at once; setting an attribute
    meanwhile may not.

    Attributes:
        chat_template: Jinja text, or several by name, or ``None``.
        trust_template: Its templates are one's own and run without limits.
        special_tokens_in_content: What becomes of the text of a control token in a message.
        model_max_length: Positions that the model was trained for, in tokens; a huge number where
            the files name none. Used by ``padding="max_length"`` and ``truncation=True``.
        name_or_path: Source of the tokenizer.
        init_kwargs: Content of ``tokenizer_config.json``, unchanged.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        special_tokens: Mapping[str, str] | None = None,
        extra_special_tokens: Sequence[str] = (),
        named_special_tokens: Mapping[str, str] | None = None,
        chat_template: str | Mapping[str, str] | None = None,
        model_max_length: int = NO_MAX_LENGTH,
        padding_side: Side = "left",
        truncation_side: Side = "right",
        clean_up_tokenization_spaces: bool = False,
        name_or_path: str = "",
        init_kwargs: Mapping[str, Any] | None = None,
        trust_template: bool = False,
        special_tokens_in_content: SpecialTokensInContent = "allow",
    ) -> None:
        """Wrap a backend.

        Args:
            backend: Tokenizer of the `tokenizers` library. Its own padding and truncation are
                switched off; here they are arguments of the call.
            special_tokens: Special tokens by role, such as ``{"eos_token": "</s>"}``.
            extra_special_tokens: Special tokens without a name.
            named_special_tokens: Special tokens by another name, such as ``image_token``.
            chat_template: Jinja text, or several by name.
            model_max_length: Positions that the model was trained for, in tokens.
            padding_side: Side of the padding; generation needs ``"left"``.
            truncation_side: Side that truncation cuts.
            clean_up_tokenization_spaces: Default of :meth:`decode`.
            name_or_path: Source of the tokenizer.
            init_kwargs: Content of its ``tokenizer_config.json``, to be saved with it.
            trust_template: The chat templates are one's own: they may call whatever jinja's sandbox
                allows, without limits.

        Raises:
            InvalidRequestError: A special token has an unknown role or is not in the vocabulary,
                or the model drops merges at random.
        """
        dropout = getattr(backend.model, "dropout", None)
        if dropout:
            allowed = "None or 0: with it a text has other tokens each time; it is for training"
            raise InvalidRequestError("dropout", dropout, allowed)
        backend.no_padding()
        backend.no_truncation()
        super().__init__(backend, special_tokens, extra_special_tokens, named_special_tokens)
        self._squares = squares_of(name_or_path or "the tokenizer", steps_of(backend))
        self.chat_template = chat_template
        self.trust_template = trust_template
        self.special_tokens_in_content = special_tokens_in_content
        self.model_max_length = model_max_length
        self.padding_side = padding_side
        self.truncation_side = truncation_side
        self.clean_up_tokenization_spaces = clean_up_tokenization_spaces
        self.name_or_path = name_or_path
        self.init_kwargs = dict(init_kwargs or {})

    @classmethod
    def from_folder(
        cls, folder: str | os.PathLike[str], *, add_prefix_space: bool | None = None
    ) -> Self:
        """Read the tokenizer of a checkpoint.

        Args:
            folder: A GGUF file, or a folder; `tokenizer_files` has the names of its files.
            add_prefix_space: Split a text as if a space stood before it; ``None``: see the file.

        Raises:
            ModelLoadError: A file is missing or cannot be read.
            InvalidRequestError: ``add_prefix_space`` does not apply to this tokenizer.
        """
        settings, backend = read_tokenizer(folder, add_prefix_space=add_prefix_space)
        return cls(
            backend,
            special_tokens=settings.special_tokens,
            extra_special_tokens=settings.extra_special_tokens,
            named_special_tokens=settings.named_special_tokens,
            chat_template=settings.chat_template,
            model_max_length=settings.model_max_length,
            padding_side=settings.padding_side,
            # It would change the text of BPE models, and many files of such models set it.
            clean_up_tokenization_spaces=settings.clean_up_tokenization_spaces
            and not isinstance(backend.model, BPE),
            truncation_side=settings.truncation_side,
            name_or_path=str(folder),
            init_kwargs=settings.stated,
        )

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        legacy_format: bool | None = None,
        filename_prefix: str | None = None,
        push_to_hub: bool = False,
    ) -> tuple[str, ...]:
        """Save to a folder, for :func:`load_tokenizer` and for the reference alike.

        Args:
            save_directory: The folder; created if it does not exist.
            legacy_format: Only ``tokenizer.json`` is written, so ``True`` is an error.
            filename_prefix: Beginning of the names of the files; a ``-`` follows it.
            push_to_hub: Nothing is uploaded, so ``True`` is an error.

        Returns:
            Paths of the files: ``tokenizer.json``, ``tokenizer_config.json``,
            ``special_tokens_map.json``, and the chat templates.

        Raises:
            InvalidRequestError: An argument is not supported.
        """
        if legacy_format:
            raise InvalidRequestError("legacy_format", True, "only tokenizer.json is written")
        if push_to_hub:
            raise InvalidRequestError("push_to_hub", True, "upload the folder with the hub's tool")
        settings = TokenizerSettings(
            special_tokens=self._roles,
            extra_special_tokens=self._extra,
            named_special_tokens=self._named,
            chat_template=self.chat_template,
            model_max_length=self.model_max_length,
            padding_side=self.padding_side,
            truncation_side=self.truncation_side,
            clean_up_tokenization_spaces=self.clean_up_tokenization_spaces,
            stated=self.init_kwargs,
        )
        prefix = f"{plain_name('filename_prefix', filename_prefix)}-" if filename_prefix else ""
        folder = checked_folder(save_directory)
        return write_tokenizer(folder, self.backend_tokenizer, settings, prefix=prefix)

    @property
    def padding_side(self) -> Side:
        """Side of the padding."""
        return self._padding_side

    @padding_side.setter
    def padding_side(self, side: Side) -> None:
        self._padding_side = check_side("padding_side", side)

    @property
    def truncation_side(self) -> Side:
        """Side that truncation cuts."""
        return self._truncation_side

    @truncation_side.setter
    def truncation_side(self, side: Side) -> None:
        self._truncation_side = check_side("truncation_side", side)

    def __repr__(self) -> str:
        """Return a line with the source, the size and the special tokens."""
        return (
            f"{type(self).__name__}({self.name_or_path!r}, tokens={len(self)}, "
            f"padding_side={self.padding_side!r}, special_tokens={self._roles})"
        )

    def tokenize(self, text: str, add_special_tokens: bool = False) -> list[str]:
        """Split ``text`` into tokens of the vocabulary."""
        return self._encode(text, add_special_tokens).tokens

    def encode_ids(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Encode one text.

        Long texts release the GIL, so a thread may call this beside a running event loop.

        Args:
            text: The text.
            add_special_tokens: Add the special tokens of the tokenizer around it.

        Returns:
            The token ids.

        Raises:
            InvalidRequestError: ``text`` is not a string, or holds a lone surrogate.
        """
        return self._encode(text, add_special_tokens).ids

    @overload
    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: None = None,
    ) -> list[int]: ...

    @overload
    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: Literal["pt"],
    ) -> torch.Tensor: ...

    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: Literal["pt"] | None = None,
    ) -> list[int] | torch.Tensor:
        """Encode one text; the parameters are those of a call.

        Returns:
            The token ids, or an int64 tensor ``[1, S]`` with ``return_tensors="pt"``.
        """
        if not isinstance(text, str):
            raise InvalidRequestError(
                "text", text, "give one string; call the tokenizer itself for a list"
            )
        return self(
            text,
            add_special_tokens,
            truncation=truncation,
            max_length=max_length,
            return_tensors=return_tensors,
        )["input_ids"]

    def __call__(
        self,
        text: str | Sequence[str],
        add_special_tokens: bool = True,
        *,
        padding: Padding = False,
        truncation: bool = False,
        max_length: int | None = None,
        padding_side: Side | None = None,
        return_tensors: Literal["pt"] | None = None,
        return_attention_mask: bool = True,
        return_token_type_ids: bool = False,
    ) -> BatchEncoding:
        """Encode one text or several.

        Args:
            text: A text, or a list of texts.
            add_special_tokens: Add the special tokens of the tokenizer around each.
            padding: ``True`` or ``"longest"`` pads to the longest text, ``"max_length"`` to
                ``max_length``.
            truncation: Cut to ``max_length`` tokens, special tokens included.
            max_length: A number of tokens; ``model_max_length`` if left out.
            padding_side: Overrides the attribute for this call.
            return_tensors: ``"pt"`` for tensors.
            return_attention_mask: Return ``attention_mask``.
            return_token_type_ids: Not supported, so ``True`` is an error.

        Returns:
            ``input_ids`` and ``attention_mask``: lists of ints for one text, lists of such lists
            for several, int64 tensors ``[B, S]`` with ``"pt"``.

        Raises:
            InvalidRequestError: A parameter is malformed, padding was asked for without a
                ``pad_token``, or tensors of texts with different lengths without padding.
        """
        texts = [text] if isinstance(text, str) else _check_texts(text)
        if return_token_type_ids:
            raise InvalidRequestError("return_token_type_ids", True, "a text has no types here")
        return self._packed(
            partial(self._encode_rows, texts, add_special_tokens),
            isinstance(text, str),
            padding=padding,
            truncation=truncation,
            max_length=max_length,
            padding_side=padding_side,
            return_tensors=return_tensors,
            return_attention_mask=return_attention_mask,
        )

    def _packed(
        self,
        encode_rows: Callable[[int | None], list[list[int]]],
        single: bool,
        *,
        padding: Padding,
        truncation: bool,
        max_length: int | None,
        padding_side: Side | None = None,
        return_tensors: Literal["pt"] | None,
        return_attention_mask: bool = True,
    ) -> BatchEncoding:
        """Make the result of a call; ``encode_rows`` takes the most tokens of a row."""
        if padding not in (True, False, "longest", "max_length", "do_not_pad"):
            raise InvalidRequestError(
                "padding", padding, "use True, False, 'longest' or 'max_length'"
            )
        if return_tensors not in (None, "pt"):
            raise InvalidRequestError("return_tensors", return_tensors, "use 'pt' or None")
        limit = self._limit(max_length, padding, truncation)
        rows = encode_rows(limit if truncation else None)
        data = {"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]}
        self._pad(data, padding, limit, padding_side)
        if not return_attention_mask:
            del data["attention_mask"]
        return pack_rows(data, single=single, return_tensors=return_tensors)

    def pad(
        self,
        encoded_inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        padding: Padding = True,
        *,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: Side | None = None,
        return_tensors: Literal["pt"] | None = None,
    ) -> BatchEncoding:
        """Pad encoded texts.

        Args:
            encoded_inputs: Results of calls for a text each, or one result.
            padding: As in a call.
            max_length: As in a call.
            pad_to_multiple_of: Pad further, to a multiple of this number of tokens.
            padding_side: Overrides the attribute for this call.
            return_tensors: ``"pt"`` for tensors ``[B, S]``.

        Raises:
            InvalidRequestError: As for a call, or it is no result of a call.
        """
        data, single = collate(encoded_inputs)
        if padding in _PADS:
            limit = self._limit(max_length, padding, False)
            self._pad(data, padding, limit, padding_side, pad_to_multiple_of)
        return pack_rows(data, single=single, return_tensors=return_tensors)

    def decode(
        self,
        token_ids: TokenIds,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> str:
        """Turn token ids into text.

        Args:
            token_ids: One id, a list of ids, or a tensor ``[S]``. Ids beyond the vocabulary are
                left out, as in the reference.
            skip_special_tokens: Leave special tokens out.
            clean_up_tokenization_spaces: Remove the space before English punctuation and
                contractions; ``None``: as the attribute.

        Raises:
            InvalidRequestError: An id is negative, or there are several rows.
        """
        ids, backend = as_ids(token_ids), self.backend_tokenizer
        try:
            if len(ids) >= _LONG:
                (text,) = backend.decode_batch([ids], skip_special_tokens=skip_special_tokens)
            else:
                text = backend.decode(ids, skip_special_tokens=skip_special_tokens)
        except BaseException as error:
            raise library_error("token_ids", ids, error) from error
        given, own = clean_up_tokenization_spaces, self.clean_up_tokenization_spaces
        clean = own if given is None else given
        return _SPACED_MARKS.sub("", text.replace(" ' ", "'")) if clean else text

    def batch_decode(
        self,
        sequences: Sequence[Sequence[int]] | Sequence[torch.Tensor] | torch.Tensor,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[str]:
        """Turn rows of token ids into texts.

        Args:
            sequences: Lists of ids, or a tensor ``[B, S]``.
            skip_special_tokens: As in :meth:`decode`.
            clean_up_tokenization_spaces: As in :meth:`decode`.
        """
        options = (skip_special_tokens, clean_up_tokenization_spaces)
        return [self.decode(row, *options) for row in as_rows(sequences)]

    def _encode(self, text: str, add_special_tokens: bool) -> Encoding:
        if not isinstance(text, str):
            raise InvalidRequestError("text", text, "give a string")
        if self._squares:
            check_runs([text], self._squares)
        backend = self.backend_tokenizer
        try:
            if len(text) < _LONG:
                return backend.encode(text, add_special_tokens=add_special_tokens)
            return backend.encode_batch([text], add_special_tokens=add_special_tokens)[0]
        except BaseException as error:
            raise encoding_error([text], error) from error

    def _encode_rows(
        self, texts: Sequence[str], add_special_tokens: bool, limit: int | None
    ) -> list[list[int]]:
        if limit is None:
            if len(texts) == 1:
                return [self._encode(texts[0], add_special_tokens).ids]
            try:
                check_runs(texts, self._squares)
                encodings = self.backend_tokenizer.encode_batch_fast(
                    list(texts), add_special_tokens=add_special_tokens
                )
            except BaseException as error:
                raise encoding_error(texts, error) from error
            return [encoding.ids for encoding in encodings]
        return [self._encode_truncated(text, add_special_tokens, limit) for text in texts]

    def _encode_truncated(self, text: str, add_special_tokens: bool, limit: int) -> list[int]:
        # The backend's own truncation is a setting, which other threads would see.
        frame = self.backend_tokenizer.num_special_tokens_to_add(False) if add_special_tokens else 0
        if limit < frame:
            raise InvalidRequestError(
                "max_length", limit, f"the special tokens alone are {frame}; give more"
            )
        bare = self._encode(text, add_special_tokens=False)
        try:
            bare.truncate(limit - frame, direction=self.truncation_side)
            return self.backend_tokenizer.post_process(bare, None, add_special_tokens).ids
        except BaseException as error:
            raise library_error("text", text, error) from error

    def _limit(self, max_length: int | None, padding: Padding, truncation: bool) -> int:
        if not isinstance(truncation, bool):
            raise InvalidRequestError("truncation", truncation, "use True or False")
        if max_length is None:
            if padding == "max_length" and self.model_max_length >= NO_MAX_LENGTH:
                allowed = "this tokenizer names no length; give `max_length`"
                raise InvalidRequestError("padding", padding, allowed)
            return self.model_max_length
        if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 0:
            raise InvalidRequestError("max_length", max_length, "give a number of tokens")
        if not truncation and padding != "max_length":
            allowed = "add `truncation=True` or `padding='max_length'`"
            raise InvalidRequestError("max_length", max_length, allowed)
        return max_length

    def _pad(
        self,
        data: Mapping[str, list[list[int]]],
        padding: Padding,
        limit: int,
        side: Side | None,
        multiple: int | None = None,
    ) -> None:
        """Pad ids and masks in place; ``limit`` is the width of ``"max_length"``."""
        if padding not in _PADS:
            return
        rows = data["input_ids"]
        width = limit if padding == "max_length" else max(map(len, rows), default=0)
        pad_rows(
            rows,
            data["attention_mask"],
            width=rounded_up(width, multiple),
            pad_id=self._needed_pad_id(),
            side=check_side("padding_side", self.padding_side if side is None else side),
        )

    def _needed_pad_id(self) -> int:
        pad_id = self.pad_token_id
        if pad_id is None:
            remedy = "`tokenizer.pad_token = tokenizer.eos_token`"
            allowed = f"the tokenizer has no padding token; set one, for example {remedy}"
            raise InvalidRequestError("padding", True, allowed)
        return pad_id


def _check_texts(texts: object) -> list[str]:
    if _is_list(texts) and all(isinstance(text, str) for text in texts):
        return list(texts)
    raise InvalidRequestError("text", texts, "give a string or a list of strings")


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
