"""Read and write the files of a tokenizer in a checkpoint folder.

``tokenizer.json`` is the tokenizer; the other files give special tokens their roles, add tokens
and contain chat templates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from asyncgen.checkpoints.gguf.file_choice import is_single
from asyncgen.checkpoints.gguf.tokenizer import library_errors, read_gguf_tokenizer
from asyncgen.checkpoints.hub import read_json, read_text
from asyncgen.checkpoints.saved_folder import SavedFolder, plain_name
from asyncgen.checkpoints.stored_files import (
    as_path,
    check_unchanged,
    is_stored,
    names_in,
    read_stored,
)
from asyncgen.checkpoints.tokenizer_sizes import check_added
from asyncgen.errors import InvalidRequestError, ModelLoadError, clip, shorten
from asyncgen.runtime.wanted import require_wanted
from asyncgen.text.batch_encoding import Side, check_side
from asyncgen.text.old_layouts import frame, read_old_layout
from asyncgen.text.setting_kinds import (
    NO_MAX_LENGTH,
    check_added_tokens,
    check_model_config,
    check_settings,
    check_token_map,
    max_length,
)
from asyncgen.text.special_tokens import ROLES, SpecialTokens, content, special_tokens
from asyncgen.text.tokenizer_classes import class_name
from asyncgen.text.tokenizer_parts import MOST_TOKEN, parts_of
from asyncgen.text.tokenizer_state import check_steps, read_state

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from pathlib import Path


_TEMPLATE = "chat_template.jinja"
_MORE_TEMPLATES = "additional_chat_templates"
_MOST_TEMPLATES = 100
_MOST_OF_TEMPLATES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """Content of the files beside ``tokenizer.json``.

    Attributes:
        special_tokens: Special tokens by role.
        named_special_tokens: Special tokens by another name, such as ``image_token``.
        extra_special_tokens: Special tokens without a name.
        forms: Special tokens by text whose files say how they match.
        added_tokens: Tokens by id that are added to those of ``tokenizer.json``.
        chat_template: Jinja text, or several by name, or ``None``.
        model_max_length: Positions that the model was trained for, in tokens.
        padding_side: Side of the padding.
        truncation_side: Side that truncation cuts.
        clean_up_tokenization_spaces: Decoding removes spaces before punctuation.
        stated: Content of ``tokenizer_config.json``, unchanged.
        class_name: Class of the reference; see `tokenizer_classes`.
    """

    special_tokens: Mapping[str, str] = field(default_factory=dict)
    named_special_tokens: Mapping[str, str] = field(default_factory=dict)
    extra_special_tokens: Sequence[str] = ()
    forms: Mapping[str, AddedToken] = field(default_factory=dict)
    added_tokens: Mapping[int, AddedToken] = field(default_factory=dict)
    chat_template: str | Mapping[str, str] | None = None
    model_max_length: int = NO_MAX_LENGTH
    padding_side: Side = "left"
    truncation_side: Side = "right"
    clean_up_tokenization_spaces: bool = False
    stated: Mapping[str, Any] = field(default_factory=dict)
    class_name: str = ""


def read_tokenizer(
    place: str | os.PathLike[str], *, add_prefix_space: bool | None = None
) -> tuple[TokenizerSettings, Backend]:
    """Read a tokenizer and its settings.

    Args:
        place: Folder of a checkpoint, or a GGUF file.
        add_prefix_space: Overrides the pre-tokenizer's setting of that name.

    Raises:
        ModelLoadError: It is missing, or cannot be read.
        UnsupportedModelError: The tokenizer of a GGUF file is of an unsupported kind.
        InvalidRequestError: ``add_prefix_space`` does not apply to this tokenizer.
    """
    path = as_path(place)
    if is_single(path):
        if add_prefix_space is not None:
            raise InvalidRequestError("add_prefix_space", add_prefix_space, "a GGUF file says it")
        backend, stated = read_gguf_tokenizer(path)
        check_steps(path, backend)
        check_unchanged(path)
        return TokenizerSettings(**stated), backend
    settings = read_settings(path)
    if is_stored(path / "tokenizer.json"):
        backend = read_backend(path, settings, add_prefix_space=add_prefix_space)
    else:
        settings, backend = _read_old(path, settings, add_prefix_space)
    check_unchanged(path)
    return settings, backend


def _read_old(
    folder: Path, settings: TokenizerSettings, add_prefix_space: bool | None
) -> tuple[TokenizerSettings, Backend]:
    """Read a tokenizer without ``tokenizer.json``."""
    layout = settings.class_name, settings.stated
    with library_errors(f"{folder} has no whole tokenizer"):
        backend, roles = read_old_layout(folder, *layout, add_prefix_space)
        require_wanted()
        settings = replace(settings, special_tokens={**roles, **settings.special_tokens})
        _add_tokens(folder, backend, settings)
        frame(backend, *layout, settings.special_tokens)
    check_steps(folder, backend)
    return settings, backend


def read_settings(folder: str | os.PathLike[str]) -> TokenizerSettings:
    """Read every file beside ``tokenizer.json``; all of them may be absent.

    Raises:
        ModelLoadError: A file has a wrong format.
    """
    path = as_path(folder)
    config_file = path / "tokenizer_config.json"
    config = _read_optional(config_file, check_settings)
    token_map = _read_optional(path / "special_tokens_map.json", check_token_map)
    added = _read_optional(path / "added_tokens.json", check_added_tokens)
    name = tokenizer_class(path, config)
    try:
        tokens = special_tokens(config, token_map, name)
        return TokenizerSettings(
            special_tokens=tokens.roles,
            named_special_tokens=tokens.named,
            extra_special_tokens=tokens.extra,
            forms=tokens.forms,
            added_tokens=_added_tokens(added, config, tokens),
            chat_template=_chat_template(path, config),
            model_max_length=max_length(config.get("model_max_length")),
            padding_side=check_side("padding_side", config.get("padding_side", "left")),
            truncation_side=check_side("truncation_side", config.get("truncation_side", "right")),
            clean_up_tokenization_spaces=bool(config.get("clean_up_tokenization_spaces")),
            stated=config,
            class_name=name,
        )
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ModelLoadError(
            f"{config_file} or a file beside it has an entry of the wrong kind "
            f"({type(error).__name__}: {clip(str(error), 300)}); download the tokenizer again"
        ) from error


def tokenizer_class(folder: Path, config: Mapping[str, Any]) -> str:
    """Return the reference's class of a tokenizer.

    Args:
        folder: Folder of the checkpoint.
        config: Content of its ``tokenizer_config.json``.
    """
    file = folder / "tokenizer.json"
    is_byte_level = is_stored(file) and b'"ByteLevel"' in read_stored(file)
    model_config = _read_optional(folder / "config.json", check_model_config)
    return class_name(config, model_config, is_byte_level=is_byte_level)


def read_backend(
    folder: str | os.PathLike[str],
    settings: TokenizerSettings,
    *,
    add_prefix_space: bool | None = None,
) -> Backend:
    """Read ``tokenizer.json`` and add the tokens that the settings name.

    Args:
        folder: Folder of the checkpoint.
        settings: Content of the other files.
        add_prefix_space: Overrides the pre-tokenizer's setting of that name.

    Raises:
        ModelLoadError: It cannot be read.
        InvalidRequestError: ``add_prefix_space`` does not apply to this tokenizer.
    """
    file = as_path(folder) / "tokenizer.json"
    state, text = read_state(file, read_text(file))
    require_wanted()
    if add_prefix_space is not None:
        text = _with_prefix_space(state, add_prefix_space)
    del state  # it takes as much as what the library builds
    with library_errors(f"{file} is not a tokenizer file"):
        backend = Backend.from_str(text)
        require_wanted()
        _add_tokens(as_path(folder), backend, settings)
    return backend


def write_tokenizer(
    folder: Path, backend: Backend, settings: TokenizerSettings, *, prefix: str = ""
) -> tuple[str, ...]:
    """Write every file of a tokenizer; files that were saved there before are replaced.

    Args:
        folder: Target folder.
        backend: The tokenizer.
        settings: Content of the files beside it.
        prefix: Beginning of the names of the files.

    Returns:
        The paths of the files.
    """
    tokens: dict[str, Any] = {**settings.special_tokens, **settings.named_special_tokens}
    if settings.extra_special_tokens:
        tokens["additional_special_tokens"] = list(settings.extra_special_tokens)
    texts = {
        "tokenizer.json": backend.to_str(pretty=True),
        "tokenizer_config.json": _as_json(
            _stated_now(settings, is_bpe=isinstance(backend.model, BPE))
        ),
        "special_tokens_map.json": _as_json(tokens),
    }
    templates = settings.chat_template or {}
    if isinstance(templates, str):
        templates = {"default": templates}
    for name, text in templates.items():
        texts[_template_file(name)] = text
    with SavedFolder(folder) as saved:
        for name, text in texts.items():
            saved.add(_prefixed(prefix, name), text)
        if not prefix:
            saved.drop("added_tokens.json")
            saved.drop(_TEMPLATE)
            for name in saved.names(_MORE_TEMPLATES):
                if name.endswith(".jinja"):
                    saved.drop(f"{_MORE_TEMPLATES}/{name}")
    return tuple(str(folder / _prefixed(prefix, name)) for name in texts)


def _template_file(name: str) -> str:
    """Return the file of a template; refuse names of which no file is saved."""
    if name == "default":
        return _TEMPLATE
    plain_name("chat_template", name)
    return f"{_MORE_TEMPLATES}/{plain_name('chat_template', f'{name}.jinja')}"


def _prefixed(prefix: str, name: str) -> str:
    inside, slash, last = name.rpartition("/")
    return f"{inside}{slash}{prefix}{last}"


def _stated_now(settings: TokenizerSettings, *, is_bpe: bool) -> dict[str, Any]:
    """Return the new content of ``tokenizer_config.json``: the old one with all changes."""
    # Tokens and templates are in other files.
    elsewhere = ("added_tokens_decoder", "chat_template", "name_or_path", "auto_map")
    stated = {key: value for key, value in settings.stated.items() if key not in elsewhere}
    stated.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
    for role in ROLES:
        token, was = settings.special_tokens.get(role), stated.get(role)
        if was is None or token is None or content(was) != token:
            stated[role] = token
    stated.pop("extra_special_tokens", None)
    stated["additional_special_tokens"] = list(settings.extra_special_tokens)
    stated.update(settings.named_special_tokens)
    clean = settings.clean_up_tokenization_spaces
    # It has no effect in files of BPE models: see `Tokenizer.from_folder`.
    if clean != bool(stated.get("clean_up_tokenization_spaces")) and (clean or not is_bpe):
        stated["clean_up_tokenization_spaces"] = clean
    stated["padding_side"] = settings.padding_side
    stated["truncation_side"] = settings.truncation_side
    if settings.model_max_length != NO_MAX_LENGTH or "model_max_length" in stated:
        stated["model_max_length"] = settings.model_max_length
    return stated


def _as_json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def _read_optional(
    file: Path, check: Callable[[Path, dict[str, Any]], None] | None = None
) -> dict[str, Any]:
    """Read a file that may be absent, and hold it to its kinds; one that is broken is an error."""
    if not is_stored(file):
        return {}
    found = read_json(file)
    if check is not None:
        check(file, found)
    return found


def _added_tokens(
    by_text: Mapping[str, Any], config: Mapping[str, Any], named: SpecialTokens
) -> dict[int, AddedToken]:
    """Return the tokens that files add by id; ``added_tokens.json`` only without the other list."""
    entries = config.get("added_tokens_decoder")
    if entries is not None:
        return dict(sorted((int(token), _added(entry)) for token, entry in entries.items()))
    special = {*named.roles.values(), *named.extra}
    added = {
        int(token): AddedToken(text, normalized=text not in special, special=text in special)
        for text, token in by_text.items()
    }
    return dict(sorted(added.items()))


def _added(entry: Mapping[str, Any]) -> AddedToken:
    names = ("single_word", "lstrip", "rstrip", "special")
    flags = {name: bool(entry.get(name, False)) for name in names}
    normalized = bool(entry.get("normalized", not flags["special"]))
    return AddedToken(content(entry), normalized=normalized, **flags)


def _add_tokens(folder: object, backend: Backend, settings: TokenizerSettings) -> None:
    """Add every named token: first those with ids, in order, then the special ones."""
    known = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    added = {
        token_id: token
        for token_id, token in settings.added_tokens.items()
        if repr(known.get(token.content)) != repr(token)
    }
    named = [
        *settings.special_tokens.values(),
        *settings.named_special_tokens.values(),
        *settings.extra_special_tokens,
    ]
    texts = [*(token.content for token in added.values()), *named]
    check_added(folder, len(texts), sum(map(len, texts)))
    longest = max(texts, key=len, default="")
    if len(longest) > MOST_TOKEN:
        raise ModelLoadError(
            f"{folder}: the added token {shorten(longest)} has {len(longest)} characters; at most "
            f"{MOST_TOKEN} are read"
        )
    # All at once: each call builds its search tree anew.
    backend.add_tokens(list(added.values()))
    for token_id, token in added.items():
        found = backend.token_to_id(token.content)
        if found != token_id:
            raise ModelLoadError(
                f"the added token {shorten(token.content)} should have id {token_id}, but "
                f"tokenizer.json makes it {found}; the tokenizer's files do not belong together: "
                "download them all"
            )
    decoder = backend.get_added_tokens_decoder().values()
    special = {token.content for token in decoder if token.special}
    backend.add_special_tokens(
        [
            settings.forms.get(text) or AddedToken(text, normalized=False, special=True)
            for text in named
            if text not in special
        ]
    )


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | dict[str, str] | None:
    """Return the templates of the files of their own, or else those of the settings."""
    more = folder / _MORE_TEMPLATES
    if is_stored(more) and not more.is_dir():
        raise ModelLoadError(f"{more} is no folder; templates lie in a folder of this name")
    templates = _more_templates(more) if is_stored(more) else {}
    if is_stored(folder / _TEMPLATE):
        templates["default"] = read_text(folder / _TEMPLATE)
    if set(templates) == {"default"}:
        return templates["default"]
    stored = config.get("chat_template")
    return templates or _stored_templates(folder / "tokenizer_config.json", stored)


def _more_templates(folder: Path) -> dict[str, str]:
    """Read templates by name; a name is one that can be saved."""
    names = [name for name in names_in(folder) if name.endswith(".jinja")]
    _check_templates(folder, len(names))
    templates: dict[str, str] = {}
    length = 0
    for name in names:
        stem = name.removesuffix(".jinja")
        _template_file(stem)
        templates[stem] = read_text(folder / name)
        length += len(templates[stem])
        _check_templates(folder, len(names), length)
    return templates


def _check_templates(place: object, count: int, length: int = 0) -> None:
    if count > _MOST_TEMPLATES:
        raise ModelLoadError(f"{place} has {count} templates; at most {_MOST_TEMPLATES} are read")
    if length > _MOST_OF_TEMPLATES:
        raise ModelLoadError(
            f"{place} has templates of more than {_MOST_OF_TEMPLATES} characters together"
        )


def _stored_templates(file: Path, stored: object) -> str | dict[str, str] | None:
    """Return a template, or several by name from a mapping or a list of names and texts."""
    if stored is None or isinstance(stored, str):
        return stored
    if isinstance(stored, Mapping):
        named = dict(stored)
    elif isinstance(stored, list):
        named = {entry["name"]: entry["template"] for entry in stored}
    else:
        raise TypeError(f"`chat_template` is {type(stored).__name__}")
    if not all(isinstance(text, str) for text in (*named, *named.values())):
        raise TypeError("`chat_template` has a template that is no text")
    _check_templates(file, len(named), sum(map(len, named.values())))
    for name in named:
        _template_file(name)
    return named


def _with_prefix_space(state: dict[str, Any], value: bool) -> str:
    """Return ``tokenizer.json`` with the pre-tokenizer's prefix space switched on or off."""
    steps = parts_of(state.get("pre_tokenizer"))
    spaced = [step for step in steps if "add_prefix_space" in step]
    for step in spaced:
        step["add_prefix_space"] = value
    if not spaced:
        raise InvalidRequestError(
            "add_prefix_space",
            value,
            "this tokenizer's prefix is fixed in its tokenizer.json; put the space in the text",
        )
    return json.dumps(state)
