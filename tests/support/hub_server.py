"""A stand-in of the Hugging Face hub on loopback: its HTTP API as far as publishing needs it.

The real client talks to it (`HF_ENDPOINT`). Repositories are dicts of files in memory; every commit
keeps its own. `serve` may be told to lie: other sizes, other bytes, or an error instead.
"""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN, USER = "hf_0123456789abcdefgh", "ann"


@dataclass
class Repository:
    private: bool = False
    commits: dict = field(default_factory=dict)  # sha -> {name: bytes}
    head: str | None = None

    def commit(self, files):
        self.head = hashlib.sha1(repr((len(self.commits), sorted(files))).encode()).hexdigest()
        self.commits[self.head] = dict(files)
        return self.head


@dataclass
class Hub:
    endpoint: str = ""
    repositories: dict = field(default_factory=dict)
    requests: list = field(default_factory=list)  # (method, path)
    served: dict = field(default_factory=dict)  # name -> bytes that are sent instead
    commit_name: str | None = None  # sent instead of the sha
    refuse: int | None = None  # an HTTP status for everything

    def put(self, repo, files):
        """A repository with these files; the commit."""
        return self.repositories.setdefault(repo, Repository()).commit(files)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *words):
        pass

    def answer(self, body=b"", status=200, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(data), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def missing(self, code):
        self.answer({"error": "not found"}, 404, X_Error_Code=code)

    def found(self, repo, revision):
        """Files and commit of a revision; None after an answer of 404."""
        repository = self.hub.repositories.get(repo)
        allowed = repository and (not repository.private or self.is_ann())
        if not allowed:
            self.missing("RepoNotFound")
            return None
        commit = repository.head if revision == "main" else revision
        if commit not in repository.commits:
            self.missing("RevisionNotFound")
            return None
        return repository.commits[commit], commit

    def is_ann(self):
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        hub.requests.append((self.command, path))
        if hub.refuse:
            return self.answer({"error": "try later"}, hub.refuse)
        if path == "/api/whoami-v2":
            if not self.is_ann():
                return self.answer({"error": "who are you"}, 401)
            return self.answer({"name": USER, "type": "user", "orgs": []})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            if (there := self.found(match[1], match[2] or "main")) is None:
                return None
            files, commit = there
            siblings = [
                {"rfilename": name, "size": len(data), "blobId": "0"}
                for name, data in files.items()
            ]
            sha = hub.commit_name or commit
            return self.answer({"id": match[1], "sha": sha, "siblings": siblings})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)/?", path):
            if (there := self.found(match[1], match[2])) is None:
                return None
            return self.answer(
                [
                    {"type": "file", "path": name, "size": len(data), "oid": "0"}
                    for name, data in there[0].items()
                ]
            )
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            if (there := self.found(match[1], match[2])) is None:
                return None
            files, commit = there
            if match[3] not in files:
                return self.missing("EntryNotFound")
            data = hub.served.get(match[3], files[match[3]])
            etag = hashlib.sha1(data).hexdigest()
            return self.answer(data, ETag=f'"{etag}"', X_Repo_Commit=commit)
        return self.missing("RepoNotFound")

    def do_POST(self):
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        hub.requests.append(("POST", path))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if hub.refuse:
            return self.answer({"error": "try later"}, hub.refuse)
        if not self.is_ann():
            return self.answer({"error": "who are you"}, 401)
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked.get('organization') or USER}/{asked['name']}"
            if repo in hub.repositories:
                return self.answer({"error": "it exists", "url": f"{hub.endpoint}/{repo}"}, 409)
            private = asked.get("private") or asked.get("visibility") == "private"
            hub.repositories[repo] = Repository(private=bool(private))
            hub.put(repo, {".gitattributes": b""})
            return self.answer({"url": f"{hub.endpoint}/{repo}"})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            files = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                for each in json.loads(body)["files"]
            ]
            return self.answer({"files": files})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            repository = hub.repositories[match[1]]
            files = dict(repository.commits.get(repository.head, {}))
            for line in body.splitlines():
                entry = json.loads(line)
                value = entry["value"]
                if entry["key"] == "file":
                    assert value["encoding"] == "base64"
                    files[value["path"]] = base64.b64decode(value["content"])
                elif entry["key"] == "deletedFile":
                    files.pop(value["path"])
            commit = repository.commit(files)
            url = f"{hub.endpoint}/{match[1]}/commit/{commit}"
            return self.answer({"commitUrl": url, "commitOid": commit, "success": True})
        return self.missing("RepoNotFound")


@contextmanager
def running_hub():
    """A hub on a free port, until the block ends."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def files_of(folder):
    """A folder as a dict of its files."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
