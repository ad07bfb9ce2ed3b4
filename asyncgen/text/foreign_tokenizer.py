"""Take over tokenizer objects of other libraries: `tokenizers` and transformers.

A tokenizer of transformers writes its own files, and these are read: so it means here what the same
tokenizer means when it is loaded from a folder. What is changed in the object later is not seen.
"""

from __future__ import annotations

import tempfile
from functools import partial
from typing import Any, cast

from tokenizers import Tokenizer as Backend

from asyncgen.errors import InvalidRequestError, ModelLoadError
from asyncgen.runtime.exact_values import plain
from asyncgen.runtime.user_code import is_of_user, run_user_code
from asyncgen.text.tokenizer import Tokenizer


def own_tokenizer(given: Any) -> Tokenizer:
    """Return a tokenizer of this library that does what an object of any library does.

    Args:
        given: A tokenizer of this library, which is returned as it is; an object with the methods
            of one, whose methods then put back what they leave behind on threads of engines; of
            `tokenizers`, whose special tokens then have no roles; or of transformers.

    Returns:
        The tokenizer.

    Raises:
        InvalidRequestError: It is none of these.
        ModelLoadError: A tokenizer of transformers cannot be written, or its files be read.
    """
    if isinstance(given, Tokenizer) or hasattr(given, "encode_ids"):
        return cast("Tokenizer", _Guarded(given)) if is_of_user(given) else given
    if isinstance(given, Backend):
        return Tokenizer(Backend.from_str(given.to_str()))
    if callable(getattr(given, "save_pretrained", None)):
        return _read_back(given)
    kind = type(given).__name__
    allowed = "a tokenizer of this library, of `tokenizers` or of transformers, a folder or an id"
    raise InvalidRequestError("tokenizer", kind, allowed)


def given_tokenizer(own: Any) -> Any:
    """Return the object that `own_tokenizer` was given, where it guards one."""
    return own.guarded if type(own) is _Guarded else own


class _Guarded:
    """A tokenizer that a user wrote, on threads that compute for many.

    Attributes:
        guarded: The object.
    """

    def __init__(self, given: Any) -> None:
        self.guarded = given

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.guarded)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self.guarded, name)
        return partial(run_user_code, _call, found) if callable(found) else found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return run_user_code(_call, self.guarded, *args, **kwargs)

    def __len__(self) -> int:
        return run_user_code(len, self.guarded)


def _call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a method; its texts and ids come as Python's own, as they are used behind the call."""
    found = function(*args, **kwargs)
    is_listed = isinstance(found, (str, int, list, tuple)) or type(found) is dict
    return plain(found) if is_listed else found


def _read_back(given: Any) -> Tokenizer:
    """Write a tokenizer of transformers into a folder, and read the folder."""
    name = type(given).__name__
    with tempfile.TemporaryDirectory() as folder:
        try:
            run_user_code(given.save_pretrained, folder)
            found = Tokenizer.from_folder(folder)
        except Exception as error:
            message = f"the tokenizer object {name} cannot be taken over: {error}; give its folder"
            raise ModelLoadError(message.replace(folder, name)) from error
    found.name_or_path = str(getattr(given, "name_or_path", "") or name)
    return found
