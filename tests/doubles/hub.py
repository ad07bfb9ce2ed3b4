"""A hub on the loopback interface: the HTTP that downloads of a model repository need."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

_JSON = {"Content-Type": "application/json"}


@dataclass
class Repository:
    """A repository of the stand-in.

    Attributes:
        files: Content by path; commits go to a dict alone.
        branches: Commit by branch name.
        token: Token that access needs, if any.
        gated: Whether even a valid token is refused until terms are accepted.
    """

    files: Mapping[str, bytes]
    branches: dict[str, str] = field(default_factory=lambda: {"main": "a" * 40})
    token: str | None = None
    gated: bool = False
    private: bool = False
    commits: list[dict[str, str]] = field(default_factory=list)
    """Header of every commit that was pushed: summary, description, branch."""

    def commit(self, revision: str) -> str | None:
        """Resolve a branch or a commit."""
        if revision in self.branches.values():
            return revision
        return self.branches.get(revision)


class StandInHub:
    """Serves repositories until it is left; use as a context manager.

    Attributes:
        repositories: Repositories by id; may be changed while serving.
        requests: Method, path and token of every request so far.
        broken: While true, every request is answered with status 500.
        cut: While true, the bodies of files end half way.
    """

    def __init__(self, repositories: dict[str, Repository]) -> None:
        self.repositories = repositories
        self.requests: list[tuple[str, str, str | None]] = []
        self.broken = False
        self.cut = False
        hub = self

        class Handler(_Handler):
            served = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def endpoint(self) -> str:
        """Address to give as `endpoint`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def paths(self, method: str) -> list[str]:
        """Paths that were requested with a method."""
        return [path for used, path, _ in self.requests if used == method]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    served: StandInHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_POST(self) -> None:
        path = unquote(urlsplit(self.path).path)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        self.served.requests.append((self.command, path, token))
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        push = re.fullmatch(r"/api/models/(.+)/(preupload|commit)/([^/]+)", path)
        if path == "/api/repos/create":
            self._create(json.loads(data))
        elif push is None or push[1] not in self.served.repositories:
            self._fail(404, "RepoNotFound", "Repository not found")
        elif self.served.repositories[push[1]].token not in (None, token):
            self._fail(403, "", "Forbidden: you may not write to this repository")
        elif push[2] == "preupload":
            files = json.loads(data)["files"]
            modes = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in files
            ]
            self._reply(200, _JSON, json.dumps({"files": modes}).encode())
        else:
            self._commit(push[1], push[3], data)

    def _create(self, asked: Mapping[str, object]) -> None:
        name = "/".join(str(asked[key]) for key in ("organization", "name") if asked.get(key))
        url = {"url": f"{self.served.endpoint}/{name}", "name": name, "id": name}
        if name in self.served.repositories:
            self._reply(409, _JSON, json.dumps(url).encode())
            return
        private = bool(asked.get("private")) or asked.get("visibility") == "private"
        self.served.repositories[name] = Repository({}, private=private)
        self._reply(200, _JSON, json.dumps(url).encode())

    def _commit(self, name: str, branch: str, data: bytes) -> None:
        repository = self.served.repositories[name]
        files = dict(repository.files)
        for line in map(json.loads, data.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                repository.commits.append({**value, "branch": branch, "query": self.path})
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
        repository.files = files
        number = hashlib.sha1(data).hexdigest()
        repository.branches[branch] = number
        url = f"{self.served.endpoint}/{name}/commit/{number}"
        answer: dict[str, object] = {"success": True, "commitOid": number, "commitUrl": url}
        if "create_pr=1" in self.path:
            answer["pullRequestUrl"] = f"{self.served.endpoint}/{name}/discussions/1"
        self._reply(200, _JSON, json.dumps(answer).encode())

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        self.served.requests.append((self.command, path, token))
        if self.served.broken:
            self._fail(500, "", "the stand-in is broken")
            return
        api = re.fullmatch(r"/api/models/(.+)/(revision|tree)/([^/]+)", path)
        file = re.fullmatch(r"/(.+)/resolve/([^/]+)/(.+)", path)
        match = api or file
        name = match[1] if match else ""
        repository = self.served.repositories.get(name)
        if match is None or repository is None:
            self._fail(404, "RepoNotFound", "Repository not found")
        elif repository.token is not None and token != repository.token:
            self._fail(401, "RepoNotFound", "Repository not found")
        elif repository.gated:
            self._fail(403, "GatedRepo", "Access to this model is restricted")
        elif (commit := repository.commit(match[3] if api else match[2])) is None:
            self._fail(404, "RevisionNotFound", "Revision not found")
        elif api:
            self._describe(name, repository, commit, tree=match[2] == "tree")
        elif match[3] not in repository.files:
            self._fail(404, "EntryNotFound", "Entry not found")
        else:
            self._send_file(repository.files[match[3]], commit, body=body)

    def _describe(self, name: str, repository: Repository, commit: str, *, tree: bool) -> None:
        files = [
            {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for path, data in repository.files.items()
        ]
        info = {
            "_id": "1",
            "id": name,
            "modelId": name,
            "sha": commit,
            "private": False,
            "siblings": [{"rfilename": path} for path in repository.files],
        }
        data = json.dumps(files if tree else info).encode()
        self._reply(200, {"Content-Type": "application/json"}, data)

    def _send_file(self, data: bytes, commit: str, *, body: bool) -> None:
        headers = {
            "X-Repo-Commit": commit,
            "ETag": f'"{hashlib.sha1(data).hexdigest()}"',
            "X-Linked-Size": str(len(data)),
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        start = 0
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if wanted:
            start = int(wanted[1])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._reply(206 if start else 200, headers, data[start:], body=body)

    def _fail(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message} if code else {}
        self._reply(status, headers, b"", body=False)

    def _reply(
        self, status: int, headers: Mapping[str, str], data: bytes, *, body: bool = True
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body and self.served.cut and "ETag" in headers:
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
        elif body:
            self.wfile.write(data)
