"""Who may use the pages, and from where.

On the loopback address everybody on this machine may; a page of another site may not, whatever name leads it here. On
any other address a token is needed, which a link carries once and a cookie afterwards.
"""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

COOKIE = "shoal_token"
HEADER = "x-shoal"  # a page of another site cannot send it without this one's leave, which is never given
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
RULES = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """Stands before the application.

    Parameters
    ----------
    app : ASGIApp
        What answers those who may ask.
    token : str
        What they have to know; empty where only this machine can ask.
    """

    def __init__(self, app: ASGIApp, token: str):
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have it answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        refusal = self._refusal(request)
        if refusal is not None:
            await self._with_rules(refusal, scope, receive, send)
            return
        await self._with_rules(self._app, scope, receive, send)

    async def _with_rules(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        async def ruled(message: object) -> None:
            if isinstance(message, dict) and message["type"] == "http.response.start":
                there = Headers(raw=message["headers"])
                added = [(k.encode(), v.encode()) for k, v in RULES.items() if k not in there]
                message["headers"] = [*message["headers"], *added]
            await send(message)  # type: ignore[arg-type]

        await app(scope, receive, ruled)

    def _refusal(self, request: Request) -> Response | None:
        if not self._token and _host(request) not in LOOPBACK_NAMES:
            return PlainTextResponse("this page is served under the names localhost and 127.0.0.1 only", 403)
        if self._token and not self._knows(request):
            given = request.query_params.get("token", "")
            if request.method == "GET" and hmac.compare_digest(given.encode(), self._token.encode()):
                return self._remembered(request)
            return PlainTextResponse("a token is needed: open the link that shoal dashboard has printed", 401)
        if request.method not in {"GET", "HEAD"}:
            if request.headers.get(HEADER) != "1":
                return PlainTextResponse(f"what changes something needs the header {HEADER}: 1", 403)
            origin = request.headers.get("origin")
            if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
                return PlainTextResponse("that was asked by another site", 403)
        return None

    def _knows(self, request: Request) -> bool:
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        given = (bearer, request.cookies.get(COOKIE, ""))
        return any(hmac.compare_digest(one.encode(), self._token.encode()) for one in given)

    def _remembered(self, request: Request) -> Response:
        rest = urlencode([(k, v) for k, v in request.query_params.multi_items() if k != "token"])
        response = RedirectResponse(request.url.path + (f"?{rest}" if rest else ""), 303)
        response.set_cookie(COOKIE, self._token, httponly=True, samesite="strict", secure=request.url.scheme == "https")
        return response


def _host(request: Request) -> str:
    return request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
