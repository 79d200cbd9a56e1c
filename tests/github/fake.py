"""A GitHub on 127.0.0.1 that enforces what the real one documents: sizes, permissions, pages, rate limits."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

REPOSITORY = "org/project"
TOKEN = "ghs_" + "t" * 36
MOST_COMMENT_CHARACTERS = 65_536
MOST_CHECK_CHARACTERS = 65_535


@dataclass
class Reply:
    """What to answer instead of the next request."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b'{"message": "no"}'


@dataclass
class FakeGithub:
    """Its state. writable: what the token may write. replies: answers to give first, then it behaves."""

    url: str = ""
    writable: set[str] = field(default_factory=lambda: {"pull-requests", "checks"})
    comments: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    pulls: list[dict[str, Any]] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def add_comment(self, number: int, body: str, kind: str = "Bot", mine: bool = True) -> int:
        thread = self.comments.setdefault(number, [])
        identity = 1000 + sum(map(len, self.comments.values()))
        thread.append({"id": identity, "body": body, "user": {"login": "x", "type": kind}, "mine": mine})
        return identity

    def bodies(self, number: int) -> list[str]:
        return [comment["body"] for comment in self.comments.get(number, [])]


@contextmanager
def fake_github(prefix: str = "") -> Iterator[FakeGithub]:
    """The server while the block lasts. prefix: "/api/v3" for an Enterprise Server."""
    state = FakeGithub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(state, prefix))
    state.url = f"http://127.0.0.1:{server.server_address[1]}{prefix}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(state: FakeGithub, prefix: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: ARG002 - the signature is http.server's
            return

        def do_GET(self) -> None:
            self._serve("GET")

        def do_POST(self) -> None:
            self._serve("POST")

        def do_PATCH(self) -> None:
            self._serve("PATCH")

        def _serve(self, method: str) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            content = self.rfile.read(length)
            state.requests.append(f"{method} {self.path}")
            if state.replies:
                reply = state.replies.pop(0)
                self._send(reply.status, reply.body, reply.headers)
            elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self._say(401, "Bad credentials")
            else:
                self._route(method, json.loads(content) if content else {})

        def _route(self, method: str, body: dict[str, Any]) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            base = f"{prefix}/repos/{REPOSITORY}"
            thread = re.fullmatch(rf"{base}/issues/(\d+)/comments", parts.path)
            single = re.fullmatch(rf"{base}/issues/comments/(\d+)", parts.path)
            if thread and method == "GET":
                self._page(state.comments.get(int(thread[1]), []), query, parts.path)
            elif thread and method == "POST":
                self._write_comment(body, lambda: state.add_comment(int(thread[1]), body["body"]))
            elif single and method == "PATCH":
                self._patch(int(single[1]), body)
            elif parts.path == f"{base}/pulls" and method == "GET":
                owner = query["head"].split(":")[0]
                self._page([pull for pull in state.pulls if pull["owner"] == owner], query, parts.path)
            elif parts.path == f"{base}/check-runs" and method == "POST":
                self._check(body)
            else:
                self._say(404, "Not Found")

        def _write_comment(self, body: dict[str, Any], store: Any) -> None:
            if "pull-requests" not in state.writable:
                self._say(403, "Resource not accessible by integration")
            elif len(body["body"]) > MOST_COMMENT_CHARACTERS:
                self._say(422, "Validation Failed: body is too long (maximum is 65536 characters)")
            else:
                store()
                self._send(201, b"{}", {})

        def _patch(self, identity: int, body: dict[str, Any]) -> None:
            found = [comment for thread in state.comments.values() for comment in thread if comment["id"] == identity]
            if not found:
                self._say(404, "Not Found")
            elif not found[0]["mine"]:
                self._say(403, "Must have admin rights to Repository.")
            else:
                self._write_comment(body, lambda: found[0].update(body=body["body"]))

        def _check(self, body: dict[str, Any]) -> None:
            if "checks" not in state.writable:
                self._say(403, "Resource not accessible by integration")
            elif len(body["output"]["summary"]) > MOST_CHECK_CHARACTERS or not re.fullmatch("[0-9a-f]{40}",
                                                                                         body["head_sha"]):
                self._say(422, "Validation Failed")
            else:
                state.checks.append(body)
                self._send(201, b"{}", {})

        def _page(self, items: list[Any], query: dict[str, str], path: str) -> None:
            size, page = min(100, int(query.get("per_page", "30"))), int(query.get("page", "1"))
            more = len(items) > size * page
            host = state.url.removesuffix(prefix)
            following = f'<{host}{path}?per_page={size}&page={page + 1}>; rel="next"'
            self._send(200, json.dumps(items[size * (page - 1):size * page]).encode(),
                       {"Link": following} if more else {})

        def _say(self, status: int, message: str) -> None:
            self._send(status, json.dumps({"message": message}).encode(), {})

        def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            usual = {"Content-Type": "application/json", "Content-Length": str(len(body))}
            for name, value in (usual | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    return Handler
