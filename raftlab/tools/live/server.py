"""The server of a live page: on this machine only, and only for the page that it serves.

Every address begins with a random token, and whatever else is asked for is 403. A request that comes from another web
page (Origin), or under another name (Host, by which a foreign site could have its own name lead here), is 403 too.
The page holds one request open for as long as it is there; a minute after the last of them the server ends.

Start at `LiveServer`.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from raftlab.tools.live.session import Branch, Session, SessionError, first_difference
from raftlab.tools.page.html import WEB, bundle, fill, policy_for, render_page

HOST = "127.0.0.1"
_BODY_MAX = 100_000
_TICK_S = 0.5
_ALIVE_S = 5.0  # a page that is gone is noticed when a line to it fails
_WEB = Path(__file__).parent / "web"


class PortInUse(Exception):
    """Another program uses the port."""


class LiveServer(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, session: Session, *, port: int = 0, files: Callable[[], list[Path]], gone_s: float = 60.0):
        self.session = session
        self.token = secrets.token_urlsafe(18)
        self._files = files
        self._gone_s = gone_s
        self._pages = 0
        self._page_left_s: float | None = None  # when the last page was gone
        self._pages_lock = threading.Lock()
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            if port:
                raise PortInUse(str(error.strerror)) from None
            raise

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    @property
    def names(self) -> tuple[str, str]:
        """What a browser on this machine may call this server."""
        return f"{HOST}:{self.server_port}", f"localhost:{self.server_port}"

    def serve(self) -> None:
        """Until the page has been gone for a while, or KeyboardInterrupt."""
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        try:
            while not self._is_left():
                time.sleep(_TICK_S)
        finally:
            self.shutdown()
            self.server_close()
            self.session.close()

    def _is_left(self) -> bool:
        with self._pages_lock:
            return self._page_left_s is not None and time.monotonic() - self._page_left_s > self._gone_s

    def page_came(self) -> None:
        with self._pages_lock:
            self._pages += 1
            self._page_left_s = None

    def page_left(self) -> None:
        with self._pages_lock:
            self._pages -= 1
            if not self._pages:
                self._page_left_s = time.monotonic()

    def versions(self) -> list[tuple[str, int]]:
        """The peer's files, and when each was changed."""
        found = []
        for path in self._files():
            try:
                found.append((str(path), path.stat().st_mtime_ns))
            except OSError:
                continue  # an editor replaces it just now
        return found

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that close a connection early."""


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Log nothing: the terminal is for the output of the student's code."""

    # ---- who may ask --------------------------------------------------------------------------------------

    def _path(self) -> str | None:
        """The path behind the token; None if this request gets nothing."""
        names = self.server.names
        origin = self.headers.get("Origin")
        allowed = self.headers.get("Host") in names
        allowed = allowed and (origin is None or origin in [f"http://{name}" for name in names])
        allowed = allowed and (origin is not None or self.command == "GET")
        found = re.fullmatch(r"/([^/?#]+)(/.*)", self.path)
        if allowed and found is not None and secrets.compare_digest(found[1].encode(), self.server.token.encode()):
            return found[2]
        self.close_connection = True
        self._send(HTTPStatus.FORBIDDEN, "text/plain", b"403: open the address that the terminal shows.\n")
        return None

    def do_GET(self) -> None:
        path = self._path()
        if path is None:
            return
        parts = urlsplit(path)
        try:
            branch_id = int(parse_qs(parts.query).get("branch", ["0"])[0])
            if parts.path == "/":
                self._send_page()
            elif parts.path == "/events":
                self._send_events()
            elif parts.path == "/scenario":
                text = self.server.session.scenario(branch_id)
                self._send_file(text.encode(), "text/plain", f"branch-{branch_id}.scenario")
            elif parts.path == "/page":
                branch = self.server.session.branch(branch_id)
                text = render_page(json.loads(branch.data), branch.name)
                self._send_file(text.encode(), "text/html", f"branch-{branch_id}.html")
            elif parts.path == "/choices":
                choices = self.server.session.finished(branch_id).choices
                self._send_file(choices, "application/json", f"branch-{branch_id}.choices")
            else:
                self._send(HTTPStatus.NOT_FOUND, "text/plain", b"404\n")
        except (SessionError, ValueError) as error:
            self._send(HTTPStatus.BAD_REQUEST, "text/plain", f"{error}\n".encode())

    def do_POST(self) -> None:
        path = self._path()
        if path is None:
            return
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 <= length <= _BODY_MAX:
            self.close_connection = True
            self._send(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "text/plain", b"413\n")
            return
        body = self.rfile.read(length)
        try:
            asked = msgspec.json.decode(body, type=_Request)
            done = _POSTS[path.removeprefix("/")](self.server.session, asked)
        except KeyError:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"404\n")
        except msgspec.DecodeError as error:
            self._send(HTTPStatus.BAD_REQUEST, "text/plain", f"{error}\n".encode())
        except SessionError as error:
            self._send_json(b"null", {"error": str(error), "tree": self.server.session.tree()})
        else:
            self._send_json(*done)

    # ---- answers ------------------------------------------------------------------------------------------

    def _send(self, status: HTTPStatus, kind: str, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def _send_file(self, body: bytes, kind: str, name: str) -> None:
        self._send(HTTPStatus.OK, kind, body, Content_Disposition=f'attachment; filename="{name}"')

    def _send_json(self, data: bytes, rest: dict[str, Any]) -> None:
        """The data of the run is JSON already."""
        body = b'{"data":%b,"rest":%b}' % (data or b"null", msgspec.json.encode(rest))
        self._send(HTTPStatus.OK, "application/json", body)

    def _send_page(self) -> None:
        script, style = live_script(), live_style()
        policy = policy_for(script, style, connect="'self'")
        text = fill((_WEB / "live.html").read_text(encoding="utf-8"), "Live", script, style, policy)
        self._send(HTTPStatus.OK, "text/html", text.encode(), Content_Security_Policy=policy)

    def _send_events(self) -> None:
        """One line whenever the code on the disk has changed, and now and then one that says nothing."""
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self.server.page_came()
        self.connection.settimeout(_ALIVE_S)
        try:
            known, ticks = self.server.versions(), 0
            self.wfile.write(b": hello\n\n")
            while True:
                time.sleep(_TICK_S)
                now = self.server.versions()
                if now != known:
                    names = [Path(name).name for name, changed in now if (name, changed) not in known]
                    known = now
                    self.wfile.write(f"event: changed\ndata: {json.dumps(names)}\n\n".encode())
                ticks += 1
                if ticks % 2 == 0:
                    self.wfile.write(b": alive\n\n")
        except OSError:
            pass
        finally:
            self.server.page_left()


class _Request(msgspec.Struct):
    branch: int = 0
    at: int = 0
    step: str = ""
    name: str = ""
    header: str = ""
    other: int = 0
    event: int = 0
    what: str = ""


_Answer = tuple[bytes, dict[str, Any]]


def _state(session: Session, branch: Branch, *, known: int = 0, refused: str = "") -> _Answer:
    """A branch as the page shows it. `known`: the moments that the page has."""
    session.current = branch.id
    rest: dict[str, Any] = {
        "branch": branch.id,
        "moments": [msgspec.to_builtins(moment) for moment in branch.moments[known:]],
        "known": known,
        "refused": refused,
        "note": branch.note,
        "beside": branch.beside,
        "stepped": branch.setup.is_stepped,
        "of_test": branch.setup.test is not None,
        "race": branch.setup.race,
        "tree": session.tree(),
    }
    return branch.data, rest


def _act(session: Session, asked: _Request) -> _Answer:
    branch, refused = session.act(asked.branch, asked.at, asked.step)
    if refused:
        return b"null", {"branch": branch.id, "refused": refused, "tree": session.tree()}
    known = asked.at + 1 if branch.id == asked.branch else 0
    return _state(session, branch, known=known)


def _show(session: Session, asked: _Request) -> _Answer:
    return _state(session, session.branch(asked.branch or session.current))


def _retry(session: Session, asked: _Request) -> _Answer:
    return _state(session, session.retry(asked.branch))


def _new(session: Session, asked: _Request) -> _Answer:
    return _state(session, session.open_like(asked.branch, asked.header, asked.name))


def _take_over(session: Session, asked: _Request) -> _Answer:
    return _state(session, session.take_over(asked.branch, asked.event))


def _what_if(session: Session, asked: _Request) -> _Answer:
    return _state(session, session.what_if(asked.branch, asked.event, asked.what))


def _finished(session: Session, asked: _Request) -> _Answer:
    done = session.finished(asked.branch)
    return b"null", {"finished": done.text, "failed": done.failed, "tree": session.tree()}


def _beside(session: Session, asked: _Request) -> _Answer:
    """Another branch, and the first event at which it differs from this one."""
    other, branch = session.branch(asked.other), session.branch(asked.branch)
    differs = first_difference(other.data, branch.data)
    return other.data, {"branch": other.id, "name": other.name, "differs": differs}


def _rename(session: Session, asked: _Request) -> _Answer:
    session.rename(asked.branch, asked.name)
    return b"null", {"tree": session.tree()}


def _delete(session: Session, asked: _Request) -> _Answer:
    session.delete(asked.branch)
    return b"null", {"tree": session.tree()}


_POSTS: dict[str, Callable[[Session, _Request], _Answer]] = {
    "act": _act,
    "look": _show,
    "retry": _retry,
    "new": _new,
    "beside": _beside,
    "take-over": _take_over,
    "what-if": _what_if,
    "finished": _finished,
    "rename": _rename,
    "delete": _delete,
}


def live_script() -> str:
    return bundle("live.js", _WEB)


def live_style() -> str:
    return (WEB / "page.css").read_text(encoding="utf-8") + (_WEB / "live.css").read_text(encoding="utf-8")
