"""Who is logged in: a cookie names a session, whose token stays in this process."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from urllib.parse import parse_qs

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse

COOKIE = "moonpool_session"
LOGIN_PATH = "/ui-login"
SESSIONS_MAX = 256
SESSION_S = 8 * 3600.0
TOKEN_BYTES_MAX = 4096


class Sessions:
    """Tokens by session, at most SESSIONS_MAX; the oldest go first. Time in s, of any clock that goes on."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def open(self, token: str, now_s: float) -> str:
        """A new session's name."""
        name = secrets.token_urlsafe(32)
        self._tokens[name] = (token, now_s + SESSION_S)
        while len(self._tokens) > SESSIONS_MAX:
            self._tokens.popitem(last=False)
        return name

    def token(self, name: str | None, now_s: float) -> str:
        """Its token; empty where there is no such session, or no longer."""
        token, until_s = self._tokens.get(name or "", ("", 0.0))
        return token if now_s < until_s else ""

    def close(self, name: str | None) -> None:
        """Forgets it."""
        self._tokens.pop(name or "", None)


SESSIONS = Sessions()


def token_of(request: Request) -> str:
    """The token that a page's visitor logged in with."""
    return SESSIONS.token(request.cookies.get(COOKIE), time.monotonic())


def install(app: FastAPI) -> None:
    """The two requests that a page can't make itself: a cookie is set by an answer only."""

    async def login(request: Request) -> Response:
        form = parse_qs((await request.body())[: 2 * TOKEN_BYTES_MAX].decode("ascii", "replace"))
        token = form.get("token", [""])[0].strip()
        answer = RedirectResponse("/ui/", 303)
        if token:
            name = SESSIONS.open(token[:TOKEN_BYTES_MAX], time.monotonic())
            secure = request.url.scheme == "https"
            answer.set_cookie(COOKIE, name, httponly=True, samesite="strict", secure=secure, path="/ui")
        return answer

    async def logout(request: Request) -> Response:
        SESSIONS.close(request.cookies.get(COOKIE))
        answer = RedirectResponse("/ui/login", 303)
        answer.delete_cookie(COOKIE, path="/ui")
        return answer

    app.add_api_route(LOGIN_PATH, login, methods=["POST"], include_in_schema=False)
    app.add_api_route("/ui-logout", logout, methods=["POST"], include_in_schema=False)
