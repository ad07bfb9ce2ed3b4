"""Vocabulary of a tokenizer: ids, tokens and special tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from tokenizers import AddedToken

from asyncgen.errors import MOST_NAME, InvalidRequestError, clip
from asyncgen.text.special_tokens import ROLES
from asyncgen.text.token_bounds import longest_token
from asyncgen.types import NEVER_IDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from tokenizers import Tokenizer as Backend


class _Role:
    """Attribute for a special token by its text; ``None`` if the tokenizer has none."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, owner: Vocabulary, _: type | None = None) -> str | None:
        return owner._roles.get(self.name)

    def __set__(self, owner: Vocabulary, value: str | None) -> None:
        owner._set_role(self.name, value)


class _RoleId:
    """Attribute for a special token by its id; ``None`` if the tokenizer has none."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, owner: Vocabulary, _: type | None = None) -> int | None:
        token = owner._roles.get(self.name)
        return None if token is None else owner.backend_tokenizer.token_to_id(token)

    def __set__(self, owner: Vocabulary, value: int | None) -> None:
        token = None if value is None else owner.convert_ids_to_tokens(value)
        if value is not None and token is None:
            raise InvalidRequestError(
                f"{self.name}_id", value, f"give an id from 0 to {len(owner) - 1}"
            )
        owner._set_role(self.name, token)


class Vocabulary:
    """Tokens, ids, and the roles of special tokens.

    Attributes:
        backend_tokenizer: The tokenizer of the `tokenizers` library.
        bos_token, eos_token, unk_token, sep_token, pad_token, cls_token, mask_token: Special
            tokens by their text, or ``None``. Settable to any token of the vocabulary, as in
            ``tokenizer.pad_token = tokenizer.eos_token``; the names with ``_id`` behind likewise.
    """

    bos_token = _Role("bos_token")
    eos_token = _Role("eos_token")
    unk_token = _Role("unk_token")
    sep_token = _Role("sep_token")
    pad_token = _Role("pad_token")
    cls_token = _Role("cls_token")
    mask_token = _Role("mask_token")
    bos_token_id = _RoleId("bos_token")
    eos_token_id = _RoleId("eos_token")
    unk_token_id = _RoleId("unk_token")
    sep_token_id = _RoleId("sep_token")
    pad_token_id = _RoleId("pad_token")
    cls_token_id = _RoleId("cls_token")
    mask_token_id = _RoleId("mask_token")

    def __init__(
        self,
        backend: Backend,
        special_tokens: Mapping[str, str] | None = None,
        extra_special_tokens: Sequence[str] = (),
        named_special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        """Wrap a backend.

        Args:
            backend: Tokenizer of the `tokenizers` library.
            special_tokens: Special tokens by role, such as ``{"eos_token": "</s>"}``.
            extra_special_tokens: Special tokens without a name.
            named_special_tokens: Special tokens by another name, such as ``image_token``; they
                are attributes, too, and so is ``image_token_id``.

        Raises:
            InvalidRequestError: A special token has an unknown role or is not in the vocabulary.
        """
        self.backend_tokenizer = backend
        self._roles: dict[str, str] = {}
        self._extra = list(extra_special_tokens)
        self._named = dict(named_special_tokens or {})
        for name, token in self._named.items():
            self._name(name, token)
            self._name(f"{name}_id", backend.token_to_id(token))
        for role, token in (special_tokens or {}).items():
            if role not in ROLES:
                raise InvalidRequestError("special_tokens", role, f"use the roles {list(ROLES)}")
            self._set_role(role, token)

    def _name(self, name: str, value: str | int | None) -> None:
        """Make a token an attribute, unless its name is one of the tokenizer's own."""
        if not name.startswith("_") and not hasattr(type(self), name):
            self.__dict__.setdefault(name, value)

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """Special tokens by role, then those with another name."""
        return {**self._roles, **self._named}

    @property
    def all_special_tokens(self) -> list[str]:
        """Every special token with a role or a name, then those without, each once."""
        return list(dict.fromkeys([*self.special_tokens_map.values(), *self._extra]))

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of :attr:`all_special_tokens`, in the same order."""
        ids = (self.backend_tokenizer.token_to_id(token) for token in self.all_special_tokens)
        return [token_id for token_id in ids if token_id is not None]

    @property
    def vocab_size(self) -> int:
        """Number of tokens without those that were added after training; see ``len``."""
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=False)

    def __len__(self) -> int:
        """Return the number of tokens, added ones included."""
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=True)

    def get_vocab(self) -> dict[str, int]:
        """Return a copy of the vocabulary, added tokens included."""
        return self.backend_tokenizer.get_vocab(with_added_tokens=True)

    @property
    def longest_token(self) -> int | None:
        """Most bytes of a text (UTF-8) that become one token; ``None`` for no limit.

        The first access takes as long as to write the vocabulary.
        """
        return longest_token(self.backend_tokenizer)

    @property
    def vocab(self) -> dict[str, int]:
        """A copy of the vocabulary, added tokens included."""
        return self.get_vocab()

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """Join tokens as they stand in the vocabulary to their text."""
        decoder = self.backend_tokenizer.decoder
        try:
            return " ".join(tokens) if decoder is None else decoder.decode(list(tokens))
        except BaseException as error:
            raise library_error("tokens", tokens, error) from error

    def add_tokens(
        self,
        new_tokens: str | AddedToken | Sequence[str | AddedToken],
        special_tokens: bool = False,
    ) -> int:
        """Add tokens that are not in the vocabulary.

        ``model.resize_token_embeddings(len(tokenizer))`` gives the model rows for them.

        Args:
            new_tokens: One token or several.
            special_tokens: ``skip_special_tokens`` leaves them out of decoded text.

        Returns:
            The number of tokens that were added.

        Raises:
            InvalidRequestError: A token is neither a text nor an ``AddedToken``, or empty.
        """
        given = new_tokens if isinstance(new_tokens, list | tuple) else [new_tokens]
        tokens = [_as_added(token, special_tokens) for token in given]
        size = len(self)
        if special_tokens:
            self.backend_tokenizer.add_special_tokens(tokens)
        else:
            self.backend_tokenizer.add_tokens(tokens)
        return len(self) - size

    def add_special_tokens(
        self, special_tokens_dict: Mapping[str, Any], replace_extra_special_tokens: bool = True
    ) -> int:
        """Give roles to tokens; those that are not in the vocabulary are added.

        Args:
            special_tokens_dict: Tokens by role, such as ``{"pad_token": "[PAD]"}``, and a list of
                those without under ``additional_special_tokens`` or ``extra_special_tokens``.
            replace_extra_special_tokens: The list replaces the present one.

        Returns:
            The number of tokens that were added to the vocabulary.

        Raises:
            InvalidRequestError: A role is unknown, or a token is no text.
        """
        count = 0
        for role, value in special_tokens_dict.items():
            if role in ROLES:
                count += self.add_tokens(value, special_tokens=True)
                self._set_role(role, str(value))
            elif role in ("additional_special_tokens", "extra_special_tokens"):
                count += self.add_tokens(value, special_tokens=True)
                kept = [] if replace_extra_special_tokens else self._extra
                self._extra = list(dict.fromkeys([*kept, *map(str, value)]))
            else:
                allowed = f"use the roles {[*ROLES, 'additional_special_tokens']}"
                raise InvalidRequestError("special_tokens_dict", role, allowed)
        return count

    @overload
    def convert_tokens_to_ids(self, tokens: str) -> int | None: ...

    @overload
    def convert_tokens_to_ids(self, tokens: list[str] | tuple[str, ...]) -> list[int | None]: ...

    def convert_tokens_to_ids(
        self, tokens: str | list[str] | tuple[str, ...]
    ) -> int | None | list[int | None]:
        """Look up ids; a token that is not known gives ``unk_token_id``, which may be ``None``."""
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        found = self.backend_tokenizer.token_to_id(tokens)
        return self.unk_token_id if found is None else found

    @overload
    def convert_ids_to_tokens(self, ids: int) -> str | None: ...

    @overload
    def convert_ids_to_tokens(
        self, ids: Sequence[int] | torch.Tensor, skip_special_tokens: bool = False
    ) -> list[str | None]: ...

    def convert_ids_to_tokens(
        self, ids: int | Sequence[int] | torch.Tensor, skip_special_tokens: bool = False
    ) -> str | None | list[str | None]:
        """Look up tokens as they stand in the vocabulary; an id beyond it gives ``None``."""
        if isinstance(ids, int):
            _check_ids([ids])
            return self.backend_tokenizer.id_to_token(ids)
        skipped = set(self.all_special_ids) if skip_special_tokens else set()
        return [
            self.backend_tokenizer.id_to_token(token_id)
            for token_id in as_ids(ids)
            if token_id not in skipped
        ]

    def _set_role(self, role: str, token: str | None) -> None:
        if token is None:
            self._roles.pop(role, None)
            return
        if not isinstance(token, str):
            raise InvalidRequestError(role, token, "give the text of a token, or None")
        if self.backend_tokenizer.token_to_id(token) is None:
            raise InvalidRequestError(
                role,
                token,
                "it is not in the vocabulary; choose a token that is, such as the "
                "end-of-sequence token",
            )
        # Kept in the order of ROLES, which is the order of `all_special_tokens`.
        roles = {**self._roles, role: token}
        self._roles = {name: roles[name] for name in ROLES if name in roles}


def _as_added(token: object, special: bool) -> AddedToken:
    if isinstance(token, AddedToken) and token.content:
        return token
    if not isinstance(token, str) or not token:
        raise InvalidRequestError("new_tokens", token, "give the text of a token, or several")
    return AddedToken(token, special=special, normalized=not special)


def library_error(parameter: str, value: object, error: BaseException) -> BaseException:
    """Return a request's error for what the `tokenizers` library raises; else the error itself.

    Its errors are plain `Exception`s, such as that of a vocabulary without its unknown token, and
    panics, which are no `Exception`.

    Args:
        parameter: Name of what the library was given.
        value: What it was given.
        error: What was raised.
    """
    if type(error) is not Exception and type(error).__module__ != "pyo3_runtime":
        return error
    reason = clip(str(error), MOST_NAME)
    return InvalidRequestError(parameter, value, f"the tokenizer gave up over it: {reason}")


def encoding_error(texts: Sequence[str], error: BaseException) -> BaseException:
    """Return a request's error for a lone surrogate; else as `library_error`.

    Args:
        texts: What was encoded.
        error: What was raised.
    """
    if isinstance(error, TypeError):
        for text in texts:
            try:
                text.encode()
            except UnicodeEncodeError as found:
                allowed = f"no Unicode text: a lone surrogate at position {found.start}"
                return InvalidRequestError("text", text, allowed)
    return library_error("text", texts[0] if len(texts) == 1 else texts, error)


def as_ids(token_ids: object) -> list[int]:
    """Return one row of ids as a plain list.

    Args:
        token_ids: An id, a sequence of ids, a tensor ``[S]``, or an array.

    Raises:
        InvalidRequestError: It is of another type, has several rows, or holds a negative id.
    """
    has_list = hasattr(token_ids, "tolist") and not isinstance(token_ids, NEVER_IDS)
    plain: Any = token_ids.tolist() if has_list else token_ids  # type: ignore[attr-defined]
    if isinstance(plain, int):
        plain = [plain]
    if not isinstance(plain, Sequence) or isinstance(plain, NEVER_IDS):
        raise InvalidRequestError("token_ids", token_ids, "give an id, a list of ids or a tensor")
    ids = [token_id.item() if hasattr(token_id, "item") else token_id for token_id in plain]
    _check_ids(ids)
    return ids


def as_rows(sequences: Any) -> Sequence[Any]:
    """Return rows of ids as they are, and those of a tensor or an array as lists.

    Raises:
        InvalidRequestError: It is a text or raw memory.
    """
    if isinstance(sequences, NEVER_IDS):
        raise InvalidRequestError("sequences", sequences, "give lists of ids or a tensor")
    rows: Sequence[Any] = sequences.tolist() if hasattr(sequences, "tolist") else sequences
    return rows


def _check_ids(ids: Sequence[object]) -> None:
    for token_id in ids:
        if isinstance(token_id, Sequence):
            raise InvalidRequestError("token_ids", ids, "one row only; use `batch_decode` for more")
        is_bool = isinstance(token_id, bool)
        if is_bool or not isinstance(token_id, int) or not 0 <= token_id < 2**32:
            raise InvalidRequestError("token_ids", token_id, "ids are integers from 0 upwards")
