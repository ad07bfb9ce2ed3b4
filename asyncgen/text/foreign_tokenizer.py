"""Take over tokenizer objects of other libraries: `tokenizers` and transformers.

A tokenizer of transformers writes its own files, and these are read: so it means here what the same
tokenizer means when it is loaded from a folder. What is changed in the object later is not seen.
"""

from __future__ import annotations

import tempfile
from typing import Any

from tokenizers import Tokenizer as Backend

from asyncgen.errors import InvalidRequestError, ModelLoadError
from asyncgen.text.tokenizer import Tokenizer


def own_tokenizer(given: Any) -> Tokenizer:
    """Return a tokenizer of this library that does what an object of any library does.

    Args:
        given: A tokenizer of this library, or an object with the methods of one, which is returned
            as it is; of `tokenizers`, whose special tokens then have no roles; or of transformers.

    Returns:
        The tokenizer.

    Raises:
        InvalidRequestError: It is none of these.
        ModelLoadError: A tokenizer of transformers cannot be written, or its files be read.
    """
    if isinstance(given, Tokenizer) or hasattr(given, "encode_ids"):
        return given
    if isinstance(given, Backend):
        return Tokenizer(Backend.from_str(given.to_str()))
    if callable(getattr(given, "save_pretrained", None)):
        return _read_back(given)
    kind = type(given).__name__
    allowed = "a tokenizer of this library, of `tokenizers` or of transformers, a folder or an id"
    raise InvalidRequestError("tokenizer", kind, allowed)


def _read_back(given: Any) -> Tokenizer:
    """Write a tokenizer of transformers into a folder, and read the folder."""
    name = type(given).__name__
    with tempfile.TemporaryDirectory() as folder:
        try:
            given.save_pretrained(folder)
            found = Tokenizer.from_folder(folder)
        except Exception as error:
            message = f"the tokenizer object {name} cannot be taken over: {error}; give its folder"
            raise ModelLoadError(message.replace(folder, name)) from error
    found.name_or_path = str(getattr(given, "name_or_path", "") or name)
    return found
