"""Decoding methods that users publish as a folder or a repository on the hub.

Finds ``custom_generate/generate.py`` (or, as older repositories have it, ``generate.py`` at the
top), checks the requirements beside it, and returns its function ``generate``. It knows nothing of
what that function does.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import threading
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError, MissingRequirementsError, ModelLoadError
from asyncgen.hub import read_text, resolve_code

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

__all__ = ["check_requirements", "load_recipe"]

FOLDER = "custom_generate"
FILE = "generate.py"
REQUIREMENTS = "requirements.txt"

_lock = threading.Lock()


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
        trust_remote_code: Must be true for a repository on the hub; read its code first.
        revision: Branch, tag or commit on the hub; pin the commit that you read.
        token: Access token for the hub.
        cache_dir: Where downloads are kept.
        local_files_only: Never download.

    Returns:
        The function ``generate``, whose first argument is the model.

    Raises:
        InvalidRequestError: It is on the hub, and ``trust_remote_code`` is not true.
        ModelLoadError: There is no such folder or repository, or no such function in it.
        MissingRequirementsError: Its requirements are not installed.
    """
    name = str(source)
    if not Path(source).expanduser().is_dir() and trust_remote_code is not True:
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
    folder = top / FOLDER if (top / FOLDER / FILE).is_file() else top
    if not (folder / FILE).is_file():
        raise ModelLoadError(
            f"{name!r} has no `{FOLDER}/{FILE}`, so there is no decoding method in it"
        )
    if (folder / REQUIREMENTS).is_file():
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
    """Whether a requirement is met, and the version that is installed."""
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
        spec.loader.exec_module(module)
    return module
