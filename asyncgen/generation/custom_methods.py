"""Decoding methods that users write: where they are found, and what they can be called with.

In a folder or a repository on the hub it finds ``custom_generate/generate.py`` (or, as older
repositories have it, ``generate.py`` at the top), checks the requirements beside it, and returns
its function ``generate``. It knows nothing of what such a function does, and no tensors.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import sys
import threading
from importlib import metadata
from types import ModuleType
from typing import TYPE_CHECKING, Any

from asyncgen.checkpoints.hub import given_path, read_text, resolve_code
from asyncgen.checkpoints.stored_files import is_stored
from asyncgen.errors import InvalidRequestError, MissingRequirementsError, ModelLoadError
from asyncgen.runtime.user_code import run_user_code

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


FOLDER = "custom_generate"
FILE = "generate.py"
REQUIREMENTS = "requirements.txt"

PREPARED = frozenset(
    "model input_ids logits_processor stopping_criteria generation_config attention_mask "
    "past_key_values use_cache encoder_outputs decoder_attention_mask streamer draw".split()
)
"""What a decoding method gets prepared, and a caller does not hand over."""


_lock = threading.Lock()


def choose_method(
    custom_generate: Any | None, recipe: Any | None
) -> str | os.PathLike[str] | Callable[..., Any] | None:
    """The method that was asked for under either of its names.

    Raises:
        InvalidRequestError: Both were given, or something that is no method.
    """
    if custom_generate is not None and recipe is not None:
        raise InvalidRequestError(
            "recipe", recipe, "an older name of `custom_generate`, which is given too; give one"
        )
    method = recipe if custom_generate is None else custom_generate
    if method is None or callable(method) or isinstance(method, str | os.PathLike):
        return method
    allowed = "a function, a folder, or the id of a repository"
    raise InvalidRequestError("custom_generate", method, allowed)


def parameter_names(function: Callable[..., Any]) -> frozenset[str]:
    """Names of a function's own parameters, ``*args`` and ``**kwargs`` aside."""
    return frozenset(
        one.name
        for one in _parameters(function)
        if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    )


def extra_parameters(function: Callable[..., Any]) -> frozenset[str]:
    """Names of the parameters that a decoding method has beside those that are prepared."""
    return parameter_names(function) - PREPARED


def accepted_arguments(
    function: Callable[..., Any], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Those arguments that a function can take: all of them where it has ``**kwargs``."""
    found = _parameters(function)
    if any(one.kind is one.VAR_KEYWORD for one in found):
        return dict(arguments)
    names = parameter_names(function)
    return {name: value for name, value in arguments.items() if name in names}


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin, which does not tell
        return []


def load_recipe(
    source: str | os.PathLike[str],
    *,
    trust_remote_code: bool | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
) -> Callable[..., Any]:
    """Load a decoding method. Its code runs with all rights of this program.

    Args:
        source: A folder, or the id of a repository on the hub.
        trust_remote_code: Must be true for a repository on the hub; read its code first. An
            explicit ``False`` refuses a folder as well.
        revision: Branch, tag or commit on the hub; pin the commit that you read.
        token: Access token for the hub.
        cache_dir: Where downloads are kept.
        local_files_only: Never download.

    Returns:
        The function ``generate``, whose first argument is the model.

    Raises:
        InvalidRequestError: It is on the hub, and ``trust_remote_code`` is not true; or that is
            ``False``.
        ModelLoadError: There is no such folder or repository, or no such function in it.
        MissingRequirementsError: Its requirements are not installed.
    """
    name = str(source)
    is_folder = os.path.isdir(given_path(source))
    if is_folder and trust_remote_code is False:
        allowed = f"it forbids to run the code in {name!r}; leave it out if you trust that folder"
        raise InvalidRequestError("trust_remote_code", False, allowed)
    if not is_folder and trust_remote_code is not True:
        raise InvalidRequestError(
            "trust_remote_code",
            trust_remote_code,
            f"{name!r} is no folder, and running code of that repository on the hub needs True; "
            "read its `custom_generate/generate.py` first",
        )
    top = resolve_code(
        source,
        patterns=[f"{FOLDER}/*", FILE, REQUIREMENTS],
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
    )
    folder = top / FOLDER if is_stored(top / FOLDER / FILE) else top
    if not is_stored(folder / FILE):
        raise ModelLoadError(
            f"{name!r} has no `{FOLDER}/{FILE}`, so there is no decoding method in it"
        )
    if is_stored(folder / REQUIREMENTS):
        check_requirements(name, read_text(folder / REQUIREMENTS))
    function = getattr(_import(folder), "generate", None)
    if not callable(function):
        raise ModelLoadError(f"{folder / FILE} has no function `generate`")
    return function


def check_requirements(name: str, text: str) -> None:
    """Compare the lines of a ``requirements.txt`` with what is installed.

    Args:
        name: Whose requirements they are, for the message.
        text: The file.

    Raises:
        MissingRequirementsError: Lists each one that is not met, with the version installed.
    """
    lines = [line.split(" #")[0].strip() for line in text.splitlines()]
    missing = [
        f"{line} (installed: {installed})"
        for line in lines
        if line and not line.startswith("#")
        for is_met, installed in [_look_up(line)]
        if not is_met
    ]
    if missing:
        listed = "\n".join(missing)
        raise MissingRequirementsError(f"Missing requirements for {name}:\n{listed}")


def _look_up(line: str) -> tuple[bool, str | None]:
    """Return whether a requirement is met, and the installed version."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(line)
    except InvalidRequirement:
        return False, None  # an option or an address, which pip would follow
    if wanted.marker is not None and not wanted.marker.evaluate():
        return True, None
    try:
        installed = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return False, None
    return wanted.specifier.contains(installed, prereleases=True), installed


def _import(folder: Path) -> ModuleType:
    """Run ``generate.py`` as part of a package of its own, so that it can import its siblings."""
    digest = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    package = f"asyncgen_recipe_{digest}"
    with _lock:
        for known in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
            del sys.modules[known]  # the files may have changed
        parent = ModuleType(package)
        parent.__path__ = [str(folder)]
        sys.modules[package] = parent
        importlib.invalidate_caches()
        spec = importlib.util.spec_from_file_location(f"{package}.generate", folder / FILE)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        run_user_code(spec.loader.exec_module, module)
    return module
