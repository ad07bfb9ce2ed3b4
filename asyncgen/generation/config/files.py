"""Read and write generation configurations: plain values, JSON files, the hub.

Knows nothing of what the values mean.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncgen.checkpoints.hub import read_json, resolve
from asyncgen.checkpoints.stored_files import StoredPath, is_stored
from asyncgen.errors import ModelLoadError

if TYPE_CHECKING:
    import os


def _is_dtype(value: object) -> bool:
    # By name: this module must not import torch to find out.
    return type(value).__module__ == "torch" and type(value).__name__ == "dtype"


def dtype_to_name(value: Any) -> Any:
    """Replace a torch dtype, or those in a dict, by its name."""
    if _is_dtype(value):
        return str(value).removeprefix("torch.")
    if isinstance(value, dict):
        return {key: dtype_to_name(inner) for key, inner in value.items()}
    return value


def to_plain(value: Any) -> Any:
    """Turn a value into what JSON can hold."""
    if isinstance(value, dict):
        if value and all(isinstance(key, tuple) for key in value):
            return [[list(key), inner] for key, inner in value.items()]
        return {str(key): to_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted(value)
    for method in ("to_dict", "tolist"):
        if callable(getattr(value, method, None)):
            return to_plain(getattr(value, method)())
    return dtype_to_name(value)


def fetch(
    source: str | os.PathLike[str],
    name: str,
    *,
    subfolder: str = "",
    follow_links: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Read a JSON object from a folder, the bundled model, or the hub.

    Args:
        source: A folder, "demo", or a model id on the hub.
        name: Name of the file.
        subfolder: Folder inside of the source.
        follow_links: Read a file outside of a folder to which links in it lead.
        options: For the hub: `cache_dir`, `force_download`, `local_files_only`, `token`,
            `revision`.

    Returns:
        The object.

    Raises:
        ModelLoadError: The file is missing, cannot be fetched, or is no JSON object.
    """
    if isinstance(source, StoredPath) or source == "demo" or Path(source).exists():
        folder = source
        if not isinstance(folder, StoredPath):
            folder = resolve(source, follow_links=follow_links)
        path = folder / subfolder / name
        if not is_stored(path):
            raise ModelLoadError(
                f"no file {path}; save one with `GenerationConfig.save_pretrained`, or use"
                " `GenerationConfig()`"
            )
    else:
        path = _download(str(source), name, subfolder=subfolder or None, **options)
    return read_json(path)


def _download(repo_id: str, name: str, **options: Any) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError

    try:
        return Path(hf_hub_download(repo_id, name, **options))
    except HFValidationError as error:
        message = f"{repo_id!r} is neither a folder nor a model id on the hub"
        raise ModelLoadError(message) from error
    except EntryNotFoundError as error:
        raise ModelLoadError(
            f"cannot get {name} of {repo_id!r}: it is not there, or neither cached nor reachable;"
            " check name, revision and connection, or pass a local folder"
        ) from error
    except (OSError, ValueError) as error:
        raise ModelLoadError(
            f"cannot get {name} of {repo_id!r} from the hub ({error}); check the id, the token"
            " and the connection, or pass a local folder"
        ) from error
