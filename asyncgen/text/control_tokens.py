"""Tell the control tokens of a prompt from texts that only look like them.

A tokenizer finds its control tokens in a text before its model sees the rest, whoever wrote them.
`ControlTokens` is told which of them count, and encodes the others as text.
"""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel

from asyncgen.errors import InvalidRequestError
from asyncgen.text.vocabulary import encoding_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_MARKS: Final = "\ue000\ue0f1\uf6c3\U000f1a2b¤§¶"
"""Characters around the other name of a token; the first that the normalizer leaves alone."""

_OTHER: Final = "\0"
"""Name of all that is no added token; no token has it."""


class Control(NamedTuple):
    """A control token in a text.

    Attributes:
        start, end: Its characters, with the spaces that it takes in.
        text: The token.
    """

    start: int
    end: int
    text: str


class ControlTokens:
    """The control tokens of one tokenizer.

    Attributes:
        texts: The tokens.
        normalizer: Of the tokenizer; ``None`` where no control token is looked for behind it.
        are_words: Whether the model makes them of text as well, as Unigram does of its pieces.
    """

    def __init__(self, backend: Backend, texts: frozenset[str]) -> None:
        """Make what finds and encodes them; takes a copy of the model where that is needed.

        Args:
            backend: The tokenizer; nothing of it is changed.
            texts: The control tokens.

        Raises:
            InvalidRequestError: The tokenizer cannot tell them from text.
        """
        known = sorted(backend.get_added_tokens_decoder().items())
        added = [token for _, token in known]
        is_normalized = any(token.normalized for token in added if token.content in texts)
        self.texts = texts
        self.normalizer = backend.normalizer if is_normalized else None
        self._finder = Backend(WordLevel({_OTHER: 0}, unk_token=_OTHER))
        _share(self._finder, normalizer=backend.normalizer)
        self._finder.add_tokens(added)
        self._found = {self._finder.token_to_id(text): text for text in texts}
        self._secret = secrets.token_hex(8)
        mark = _mark(backend, self._secret)
        self._names = {
            text: f"{mark}{self._secret}{number:x}{mark}"
            for number, text in enumerate(sorted(texts))
        }
        self._never = _written_ids(backend, texts)
        self._encoder = self._renamed(backend, backend.model, added)
        plain = {number for text in texts for number in _ids(self._encoder, text)}
        self.are_words = not plain.isdisjoint(self._never)
        if self.are_words:
            state = json.loads(backend.to_str())
            state["model"] = _without(state["model"], self._names)
            state.update(added_tokens=[], post_processor=None)
            copy = Backend.from_str(json.dumps(state))
            self._encoder = self._renamed(backend, copy.model, added)
            self._never = frozenset()
        self._ids = {
            self._encoder.token_to_id(self._names.get(token.content, token.content)): number
            for number, token in known
        }
        self._controls = frozenset(map(self._encoder.token_to_id, self._names.values()))

    def find(self, text: str) -> list[Control]:
        """Find control tokens, as the tokenizer does."""
        encoding = _encode(self._finder, text)
        return [
            Control(start, end, self._found[number])
            for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
            if number in self._found
        ]

    def encode(self, text: str, controls: Sequence[Control]) -> list[int]:
        """Encode a text in which the given control tokens are ones, and all others text.

        Args:
            text: The whole text.
            controls: In their order.

        Raises:
            InvalidRequestError: This tokenizer makes other control tokens of it.
        """
        pieces, last = [], 0
        for control in controls:
            pieces += [text[last : control.start], self._names[control.text]]
            last = control.end
        pieces.append(text[last:])
        ids = _ids(self._encoder, "".join(pieces))
        count = sum(number in self._controls for number in ids)
        if count != len(controls) or not self._never.isdisjoint(ids) or self._secret in text:
            allowed = (
                f"its tokens cannot be told from its text: {len(controls)} control tokens are the "
                'template\'s, and the tokenizer finds others; `special_tokens_in_content="allow"` '
                "leaves them in"
            )
            raise InvalidRequestError("messages", text, allowed)
        return [self._ids.get(number, number) for number in ids]

    def _renamed(self, backend: Backend, model: Any, added: Sequence[AddedToken]) -> Backend:
        """Make the tokenizer with other names for its control tokens."""
        made = Backend(model)
        _share(
            made,
            normalizer=backend.normalizer,
            pre_tokenizer=backend.pre_tokenizer,
            post_processor=backend.post_processor,
        )
        # Ids of added tokens begin behind those of the model, unless there are gaps in these.
        ids = model_ids(backend)
        gap = max(ids, default=0) + 1 - len(ids)
        made.add_tokens([f"{self._secret} {number}" for number in range(gap)])
        made.add_tokens([_called(each, self._names.get(each.content)) for each in added])
        return made


def model_ids(backend: Backend) -> set[int]:
    """Return the ids of a tokenizer without those of added tokens."""
    return set(backend.get_vocab(with_added_tokens=False).values())


def _share(backend: Backend, **steps: Any) -> None:
    for name, step in steps.items():
        if step is not None:
            setattr(backend, name, step)


def _called(token: AddedToken, name: str | None) -> AddedToken:
    """Return a token under another name."""
    if name is None:
        return token
    flags = {flag: getattr(token, flag) for flag in ("single_word", "lstrip", "rstrip")}
    return AddedToken(name, normalized=token.normalized, special=False, **flags)


def _mark(backend: Backend, secret: str) -> str:
    """Return a character that the normalizer leaves alone, as no name of a token has it."""
    taken = "".join(token.content for token in backend.get_added_tokens_decoder().values())
    for mark in _MARKS:
        name = f"{mark}{secret}{mark}"
        normalizer = backend.normalizer
        if mark not in taken and (
            normalizer is None or name in normalizer.normalize_str(f"a{name}a")
        ):
            return mark
    allowed = '"allow": the normalizer of this tokenizer changes every name of a token'
    raise InvalidRequestError("special_tokens_in_content", "text", allowed)


def _written_ids(backend: Backend, texts: Iterable[str]) -> frozenset[int]:
    """Ids of control tokens that the model itself could make of a text, but for the unknown one."""
    model: Any = backend.model
    ids = {model.token_to_id(text) for text in texts}
    return frozenset(ids - {None, _unknown_id(model)})


def _unknown_id(model: Any) -> int | None:
    if hasattr(model, "unk_token"):
        return None if model.unk_token is None else model.token_to_id(model.unk_token)
    unknown: int | None = json.loads(model.__getstate__()).get("unk_id")
    return unknown


def _without(model: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the state of a model that makes no control tokens of a text."""
    vocab, kind = model["vocab"], model.get("type")
    if isinstance(vocab, list):
        number = model.get("unk_id")
        model["vocab"] = [
            [piece if at == number else names.get(piece, piece), score]
            for at, (piece, score) in enumerate(vocab)
        ]
        return model
    kept = model.get("unk_token")
    model["vocab"] = {
        piece if piece == kept else names.get(piece, piece): number
        for piece, number in vocab.items()
    }
    if kind == "BPE":
        pairs = [each.split(" ") if isinstance(each, str) else each for each in model["merges"]]
        model["merges"] = [
            pair for pair in pairs if not {*pair, "".join(pair)} & (names.keys() - {kept})
        ]
    return model


def _ids(backend: Backend, text: str) -> list[int]:
    ids: list[int] = _encode(backend, text).ids
    return ids


def _encode(backend: Backend, text: str) -> Any:
    try:
        return backend.encode_batch([text], add_special_tokens=False)[0]  # without the GIL
    except BaseException as error:
        raise encoding_error([text], error) from error
