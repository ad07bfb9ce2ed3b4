"""Find the folder of a checkpoint, or its one file: bundled, local, or downloaded from the hub.

Knows folders, names and small files, but not the content of a checkpoint.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypedDict

from asyncgen.checkpoints.gguf.file_choice import is_single, only_model, patterns_of
from asyncgen.checkpoints.json_size import check_json, check_letters
from asyncgen.checkpoints.stored_files import enter_folder, is_stored, read_stored
from asyncgen.errors import InvalidRequestError, ModelLoadError
from asyncgen.runtime.progress import is_terminal, tell

if TYPE_CHECKING:
    from typing import Unpack

    from asyncgen.runtime.progress import ProgressOption

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")

_PART = re.compile(r"[\w][\w./+-]*")
"""Text that may follow a repository and a colon."""

_IN_VAIN = [
    "[!0-9]*/*.json",  # numbered folders have settings of embeddings
    "*/*.safetensors",
    "consolidated*.safetensors",
    "adapter_model.safetensors",
]

_OLD_TOKENIZERS = ("merges.txt", "tokenizer.model", "spiece.model")
"""Files of tokenizers beside those in JSON; some megabytes at most."""

_POINTER = b"version https://git-lfs"


def refuse_pointer(file: Path, stream: BinaryIO) -> None:
    """Refuse a git-lfs pointer, which a clone without git-lfs has in place of a file.

    Args:
        file: Its path, for the error.
        stream: The file, at its beginning, where it is again.

    Raises:
        ModelLoadError: The file is one.
    """
    _refuse_pointer(file, stream.read(len(_POINTER)))
    stream.seek(0)


def _refuse_pointer(file: Path, content: bytes) -> None:
    if content.startswith(_POINTER):
        raise ModelLoadError(
            f"{file} is a git-lfs pointer, not the file itself; run `git lfs pull` in its folder"
        )


def read_text(file: Path) -> str:
    """Read a UTF-8 file of a checkpoint.

    Raises:
        ModelLoadError: It cannot be read, or is a git-lfs pointer instead of the file itself.
    """
    return _text(file, read_stored(file))


def _text(file: Path, content: bytes) -> str:
    _refuse_pointer(file, content)
    check_letters(file, content)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"{file} cannot be read ({error})") from error


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object from a file of a checkpoint.

    Raises:
        ModelLoadError: It cannot be read, or does not hold a JSON object.
    """
    data = read_any_json(file)
    if not isinstance(data, dict):
        raise ModelLoadError(f"{file} holds a {type(data).__name__} instead of a JSON object")
    return data


def read_any_json(file: Path) -> Any:
    """Read JSON of any kind from a file of a checkpoint.

    Raises:
        ModelLoadError: It cannot be read, is too much, or no JSON.
    """
    content = read_stored(file)
    check_json(file, content)
    text = _text(file, content)
    del content  # it is as large as the text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{file} is not valid JSON ({error}); download it again") from error


def checked_folder(folder: str | os.PathLike[str], parameter: str = "save_directory") -> Path:
    """Return the folder to save to.

    Args:
        folder: Its path.
        parameter: Name of the caller's argument, for errors.

    Raises:
        InvalidRequestError: It is something else than a folder, or no path.
    """
    allowed = "the path of a folder"
    if not isinstance(folder, str | os.PathLike) or folder == "":
        raise InvalidRequestError(parameter, folder, allowed)
    try:
        path = Path(folder).expanduser()
        os.lstat(path)
    except OSError:  # it is to be made, and else that says why not
        return path
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidRequestError(parameter, folder, f"{allowed} ({error})") from error
    if not path.is_dir():
        kind = "a file" if path.exists() else "a link to nothing"
        raise InvalidRequestError(parameter, str(folder), f"{kind}; pass a folder")
    return path


class HubOptions(TypedDict, total=False):
    """Options of access to a repository on the hub.

    Attributes:
        revision: Branch, tag or commit of a repository.
        token: Access token for a private or gated repository; the one that the hub library has
            stored is used if left out.
        cache_dir: Folder of downloads; the hub library's cache if left out.
        local_files_only: Never download; use files of an earlier download.
        endpoint: Address of the hub; ``HF_ENDPOINT`` or the public hub if left out.
    """

    revision: str | None
    token: str | bool | None
    cache_dir: str | os.PathLike[str] | None
    local_files_only: bool
    endpoint: str | None


def resolve(
    source: str | os.PathLike[str],
    *,
    weights: bool = True,
    subfolder: str = "",
    follow_links: bool = False,
    progress: ProgressOption = None,
    **options: Unpack[HubOptions],
) -> Path:
    """Find the folder of a checkpoint; download it if it is not here yet.

    Args:
        source: ``"demo"`` for the bundled model, a folder, or the id of a repository on the hub
            such as ``"owner/name"``. A folder that is called ``demo`` is reached as ``"./demo"``.
            Also a GGUF file, a folder with one, or ``"owner/name:part"``, where the part is such a
            file of the repository or the end of its name, such as ``Q4_K_M``.
        weights: Download the weights, not only the small files beside them.
        subfolder: Folder of the checkpoint in the source; empty for the source itself.
        follow_links: Read files outside of a folder to which links in it lead.
        progress: Progress of a download: bars, nothing, or a function to call.
        **options: See `HubOptions`.

    Returns:
        An existing folder; or a file, if the whole model is one. It is a path of `enter_folder`:
        files below it are read where they may lie.

    Raises:
        InvalidRequestError: A revision was given for something that is no repository.
        ModelLoadError: There is no such folder or repository, access is denied, or the hub cannot
            be reached; or it has several models in one file each, is half saved, or is a subfolder
            that leads out of its source.
    """
    folder = _local_folder(source)
    if folder is None and _is_part(source):
        repository, _, part = str(source).partition(":")
        return _download_single(repository, part, subfolder, options, progress, follow_links)
    if folder is not None:
        _refuse_revision(options, "only a repository on the hub has revisions, a folder has not")
    else:
        # Other formats and adapters of the same model are not needed.
        allowed = ["*.json", "*.jinja", *_OLD_TOKENIZERS, *(["*.safetensors"] if weights else [])]
        inside = f"{subfolder.strip('/')}/" if subfolder else ""
        allowed, in_vain = ([inside + one for one in listed] for listed in (allowed, _IN_VAIN))
        folder = _download(source, allowed, in_vain, options, progress)
        if not follow_links:
            _check_cached(folder, str(source), options)
    if is_single(folder) and folder.is_file() and not subfolder:
        name = folder.name
        return enter_folder(folder.parent, follow_links=follow_links, named=name) / name
    if not os.path.isdir(folder / subfolder):
        allowed_here = "there is no such folder in it; leave it out, or check its name"
        raise InvalidRequestError("subfolder", subfolder, allowed_here)
    top, folder = folder, folder / subfolder
    if subfolder and not follow_links and not folder.resolve().is_relative_to(top.resolve()):
        raise ModelLoadError(f"{folder} leads out of {top}; pass follow_links=True if it may")
    # Installers may link the files of packages to a store of theirs.
    folder = enter_folder(folder, follow_links=follow_links or source == "demo")
    return folder if is_stored(folder / "config.json") else only_model(folder) or folder


def check_source(source: str | os.PathLike[str]) -> None:
    """Refuse at once a source that is neither here nor the id of a repository.

    It imports no torch and asks no hub: whether a repository is there, loading shows.

    Args:
        source: As for :class:`AsyncLLM`.

    Raises:
        ModelLoadError: It is no folder, no file of a model and no id.
    """
    if _local_folder(source) is None and not _is_part(source):
        _check_repository(source)


def resolve_code(
    source: str | os.PathLike[str], *, patterns: list[str], **options: Unpack[HubOptions]
) -> Path:
    """Find the folder of a decoding method.

    Args:
        source: A folder, or the id of a repository on the hub.
        patterns: Files to download.
        **options: See `HubOptions`.

    Raises:
        InvalidRequestError: A revision was given for something that is no repository.
        ModelLoadError: There is no such folder or repository, or it cannot be reached.
    """
    path = given_path(source)
    if os.path.isdir(path):
        _refuse_revision(options, "a folder has no revisions")
    else:
        path = _download(source, patterns, [], options)
    return enter_folder(path, follow_links=True)  # whose code is run may show any file


def _refuse_revision(options: HubOptions, reason: str) -> None:
    revision = options.get("revision")
    if revision is not None:
        raise InvalidRequestError("revision", revision, reason)


def _is_part(source: str | os.PathLike[str]) -> bool:
    """Tell whether a source is a file of a repository, as ``"owner/name:part"``."""
    repository, _, part = str(source).partition(":")
    return all(("/" in repository, _REPOSITORY.fullmatch(repository), _PART.fullmatch(part)))


def _check_repository(source: str | os.PathLike[str]) -> None:
    if isinstance(source, os.PathLike) or not _REPOSITORY.fullmatch(source):
        raise ModelLoadError(f"there is no folder {str(source)!r}; check the path")


def _local_folder(source: str | os.PathLike[str]) -> Path | None:
    """Return the folder that ``source`` names, or ``None`` where there is none."""
    if source == "demo":
        return Path(__file__).parents[1] / "demo"
    path = given_path(source)
    if os.path.isfile(path):
        if is_single(path):
            return path
        raise ModelLoadError(f"{str(source)!r} is a file; give the folder that it lies in")
    return path if str(source) and os.path.isdir(path) else None


def given_path(source: str | os.PathLike[str]) -> Path:
    """Return what a caller gives as a path; a home that there is not stays as it is spelled."""
    return Path(os.path.expanduser(source))


def _download_single(
    repository: str,
    part: str,
    subfolder: str,
    options: HubOptions,
    progress: ProgressOption,
    follow_links: bool,
) -> Path:
    """Download the file of a repository that holds a whole model; return the first part of it."""
    inside = f"{subfolder.strip('/')}/" if subfolder else ""
    patterns = patterns_of(part)
    allowed = [inside + pattern for pattern in patterns]
    folder = _download(repository, allowed, [], options, progress)
    if not follow_links:
        _check_cached(folder, repository, options)
    folder /= subfolder
    folder = enter_folder(folder, follow_links=follow_links)
    found = only_model(folder, patterns) if folder.is_dir() else None
    if found is None:
        raise ModelLoadError(
            f"the repository {repository!r} has no GGUF file of the name or ending {part!r}; "
            "see its page on the hub for those that there are"
        )
    return found


def _download(
    source: str | os.PathLike[str],
    allowed: list[str],
    ignored: list[str],
    options: HubOptions,
    progress: ProgressOption = None,
) -> Path:
    _check_repository(source)
    repository = str(source)
    # Imported here: it takes longer to import than everything else that loading needs but torch.
    from huggingface_hub import snapshot_download

    named = _cached(repository, options) / "refs" / str(options.get("revision") or "main")
    if os.path.exists(named) and not (os.path.isfile(named) or os.path.isdir(named)):
        # A FIFO would wait for ever.
        raise ModelLoadError(f"{named} in the cache of the hub is no file; remove it")
    where: dict[str, Any] = {**options}
    where["endpoint"] = where.get("endpoint") or os.environ.get("HF_ENDPOINT")
    try:
        return Path(
            snapshot_download(
                repository,
                allow_patterns=allowed,
                ignore_patterns=ignored,
                tqdm_class=_bars(progress),
                **where,
            )
        )
    except Exception as error:
        raise ModelLoadError(_explain(repository, options, error)) from error


def _cached(repository: str, options: HubOptions) -> Path:
    """Return the folder of a repository in the hub's cache."""
    from huggingface_hub import constants

    cache = options.get("cache_dir")
    cache = given_path(constants.HF_HUB_CACHE if cache is None else cache)
    return cache / f"models--{repository.replace('/', '--')}"


def _check_cached(folder: Path, repository: str, options: HubOptions) -> None:
    """Refuse a folder that is not its repository's: a cache may come from anybody as well.

    Raises:
        ModelLoadError: The cache names another place for it, or has a link there.
    """
    if not folder.resolve().is_relative_to(_cached(repository, options).resolve()):
        raise ModelLoadError(
            f"the cache of the hub leads to {folder.resolve()} for {repository!r}, outside of the "
            "repository; pass follow_links=True if whoever made the cache may show that folder"
        )


def _bars(progress: ProgressOption) -> type[Any] | None:
    """Return the progress class for the hub library; ``None`` for its own bars."""
    if progress is None and is_terminal(sys.stderr):
        return None
    from huggingface_hub.utils import tqdm

    lock = threading.Lock()

    class Silent(tqdm):  # type: ignore[misc]  # its package has no types
        """Shows nothing; reports the written bytes to a function."""

        def __init__(self, *args: Any, **options: Any) -> None:
            name = options.get("name") or ""
            self._tells = options.get("unit") == "B" and not name.endswith(".transfer")
            super().__init__(*args, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            if not callable(progress) or not self._tells:
                return
            with lock:  # files are fetched on several threads
                self.n += n or 0
                tell(progress, "downloading", int(self.n), int(self.total or self.n))

    return Silent


def _explain(repository: str, options: HubOptions, error: Exception) -> str:
    """Describe the error of a download, and the remedy."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return (
            f"the repository {repository!r} is gated; accept its terms on its page on the hub, "
            "then pass `token=` of an account that did"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        revision = options.get("revision")
        return f"the repository {repository!r} has no revision {revision!r}; check `revision`"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"there is no folder {repository!r}, and the hub shows no repository of that name; "
            "check the spelling, or pass `token=` if it is private"
        )
    if options.get("local_files_only"):
        return (
            f"{repository!r} is not complete in the local cache; "
            "leave `local_files_only` out to download it"
        )
    answer = error if isinstance(error, errors.HfHubHTTPError) else error.__cause__
    if isinstance(answer, errors.HfHubHTTPError):
        status = answer.response.status_code
        remedy = "pass a valid `token=`" if status in (401, 403) else "try again later"
        return f"the hub answered {status} for {repository!r}; {remedy}"
    if isinstance(error, errors.LocalEntryNotFoundError):
        return (
            f"there is no folder {repository!r}, and the hub cannot be reached to download it "
            f"({_first_line(error)}); check the connection, or give the path of a folder"
        )
    return (
        f"downloading {repository!r} failed ({type(error).__name__}: {_first_line(error)}); "
        "see to the cause and try again, or give the path of a folder"
    )


def _first_line(error: Exception) -> str:
    cause = error.__cause__ or error
    return next(iter(str(cause).splitlines()), type(cause).__name__)
