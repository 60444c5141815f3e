"""Who may ask the server for anything: a token, no other origin, and headers that forbid scripts.

The guard looks at every request and knows no paths, so no route can be forgotten. The host of a
request is checked before it (`TrustedHostMiddleware`), so that `Origin` can be compared with it.
"""

import hmac
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN = "token"  # of a URL
READING = ("GET", "HEAD")
MAX_BODY = 64 * 1024  # bytes of a request
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
# A page that a run brings along, such as its report: it may look as it likes, and do nothing.
FOREIGN_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
ASK_FOR_TOKEN = (
    '<!doctype html><html lang="en"><title>RL Lab</title><h1>A token is needed</h1>'
    "<p>Open the address that <code>rl-lab ui</code> has printed: it ends in "
    "<code>?token=…</code>.</p></html>"
)


class Guard:
    """Answers a request only if it brings the token, and changes nothing for another origin."""

    def __init__(self, app: ASGIApp, *, token: str, cookie: str) -> None:
        self.app, self.token, self.cookie = app, token, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; anything but HTTP is refused."""
        if scope["type"] != "http":
            raise RuntimeError(f"'{scope['type']}' is not served")

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self.app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """What to answer instead; None: the request may pass."""
        headers = Headers(scope=scope)
        reads = scope["method"] in READING
        if (origin := headers.get("origin")) is not None and origin != _own_origin(scope, headers):
            return _refused(403, "a page of another origin may not ask")
        if headers.get("sec-fetch-site") == "cross-site" and not reads:
            return _refused(403, "a page of another site may not ask")
        by_header = self._is_token(_bearer(headers))
        by_cookie = self._is_token(cookie_parser(headers.get("cookie", "")).get(self.cookie))
        if not (by_header or by_cookie):
            return self._first_visit(scope) if reads else _refused(401, "a token is needed")
        if reads:
            # The address with the token must not stay in the address bar once it has served.
            return self._first_visit(scope) if _has_token(scope) else None
        if origin is None and not by_header:
            return _refused(403, "a request that changes something needs an Origin")
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _refused(415, "the body must be application/json")
        size = headers.get("content-length", "")
        # A body in chunks may be longer than the length that is given beside them.
        if "transfer-encoding" in headers or not size.isdecimal() or int(size) > MAX_BODY:
            return _refused(413, f"the body must have a length, at most {MAX_BODY:,} bytes")
        return None

    def _first_visit(self, scope: Scope) -> Response:
        """A token in the address becomes a cookie, and the address loses it."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if not any(name == TOKEN and self._is_token(value) for name, value in query):
            return HTMLResponse(ASK_FOR_TOKEN, status_code=401)
        rest = urlencode([(name, value) for name, value in query if name != TOKEN])
        # One slash in front: `//elsewhere` would be the address of another host.
        path = "/" + quote(scope["path"].lstrip("/\\"))
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, status_code=303)
        answer.set_cookie(self.cookie, self.token, httponly=True, samesite="strict", path="/")
        return answer

    def _is_token(self, found: str | None) -> bool:
        known, given = self.token.encode(), (found or "").encode("utf-8", "replace")
        return hmac.compare_digest(known, given)


def _bearer(headers: Headers) -> str | None:
    kind, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else None


def _has_token(scope: Scope) -> bool:
    query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    return any(name == TOKEN for name, _ in query)


def _own_origin(scope: Scope, headers: Headers) -> str:
    return f"{scope.get('scheme', 'http')}://{headers.get('host', '')}"


def _refused(code: int, why: str) -> Response:
    return JSONResponse({"error": why}, status_code=code)
