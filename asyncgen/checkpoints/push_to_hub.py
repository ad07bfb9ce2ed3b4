"""Upload what a class saves to a repository of the hub."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def upload(
    path: Path,
    repo_id: str,
    token: str | bool | None = None,
    private: bool | None = None,
    revision: str | None = None,
    commit_message: str | None = None,
    commit_description: str | None = None,
    create_pr: bool = False,
) -> str:
    """Upload a file, or all files of a folder, to a repository, which is made if need be.

    Args:
        path: The file, or the folder.
        repo_id: The repository.
        token: Token for the hub; True takes the stored one.
        private: Whether a new repository is private.
        revision: Branch to write to.
        commit_message: Message of the commit; "Upload" and the name of the file by default.
        commit_description: Its longer text.
        create_pr: Propose the change instead of making it.

    Returns:
        Address of the commit.

    Raises:
        OSError: The hub refuses, or cannot be reached.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    # The client reads this variable once, when it is imported.
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)
    repository = api.create_repo(repo_id, private=private, exist_ok=True)
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    root = path.parent if path.is_file() else path
    commit = api.create_commit(
        repo_id=repository.repo_id,
        operations=[
            CommitOperationAdd(path_in_repo=file.relative_to(root).as_posix(), path_or_fileobj=file)
            for file in files
        ],
        revision=revision,
        commit_message=commit_message or f"Upload {path.name}",
        commit_description=commit_description,
        create_pr=create_pr,
    )
    return str(commit.commit_url)


class PushToHubMixin:
    """Uploads what `save_pretrained` of the class writes."""

    def save_pretrained(self, save_directory: str | os.PathLike[str]) -> object:
        """Save to a folder; the class knows how."""
        raise NotImplementedError(f"`{type(self).__name__}` has no `save_pretrained`")

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str | None = None,
        commit_description: str | None = None,
        private: bool | None = None,
        token: bool | str | None = None,
        revision: str | None = None,
        create_pr: bool = False,
    ) -> str:
        """Save to a temporary folder, and upload its files to a repository.

        Args:
            repo_id: The repository, such as "owner/name"; made where it does not exist.
            commit_message: Message of the commit.
            commit_description: Its longer text.
            private: Whether a new repository is private.
            token: Token for the hub; True or None takes the stored one.
            revision: Branch to write to.
            create_pr: Propose the change instead of making it.

        Returns:
            Address of the commit.

        Raises:
            OSError: The hub refuses, or cannot be reached.
        """
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            return upload(
                Path(folder),
                repo_id,
                token=token,
                private=private,
                revision=revision,
                commit_message=commit_message or f"Upload {type(self).__name__}",
                commit_description=commit_description,
                create_pr=create_pr,
            )
