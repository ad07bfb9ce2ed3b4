"""What a class saves reaches a repository of the hub, whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from asyncgen.checkpoints.push_to_hub import PushToHubMixin, upload
from tests.doubles.hub import Repository, StandInHub

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    """A hub on the loopback interface, where one repository exists."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with StandInHub({"me/there": Repository({"a.txt": b"a"}, token="secret")}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub


class Recipe(PushToHubMixin):
    """A class of a user, which saves two files."""

    def save_pretrained(self, save_directory: str | os.PathLike[str]) -> None:
        from pathlib import Path

        folder = Path(save_directory)
        (folder / "inner").mkdir()
        (folder / "one.json").write_text("1")
        (folder / "inner" / "two.json").write_text("2")


def test_every_file_of_a_users_class_is_uploaded(hub: StandInHub) -> None:
    url = Recipe().push_to_hub("me/there", token="secret", create_pr=True)
    repository = hub.repositories["me/there"]
    assert url.startswith(f"{hub.endpoint}/me/there/commit/")
    assert repository.files == {"a.txt": b"a", "one.json": b"1", "inner/two.json": b"2"}
    (commit,) = repository.commits
    assert commit["summary"] == "Upload Recipe"
    assert "create_pr=1" in commit["query"]


def test_a_push_without_permission_fails(hub: StandInHub, tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text("{}")
    with pytest.raises(OSError, match="correct permissions"):
        upload(tmp_path / "g.json", "me/there", token="other")
    assert hub.repositories["me/there"].files == {"a.txt": b"a"}


def test_a_class_that_cannot_save_says_so() -> None:
    with pytest.raises(NotImplementedError, match="`PushToHubMixin` has no `save_pretrained`"):
        PushToHubMixin().push_to_hub("me/there")
