"""Between the socket and the routes: limits of size, time and number, who may ask, and a log line per request.

A page in somebody's browser can reach a loopback port, too. It cannot send application/json to another origin without
asking first, which nothing here allows; and a name of its own that it has made to point here is not a name in `hosts`.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable
from functools import partial

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from optcc.serve.log import log_line
from optcc.serve.messages import ErrorBody, ErrorReply, ReplyError
from optcc.serve.settings import ServeSettings

LONGEST_PATH = 256
ANSWERED = "optcc.status"
"""In a request's state: the status of an answer that did not come from here."""
LEFT = 499
"""What the log has as the status where the caller left before there was one, as nginx's has."""
LAST_WORDS_S = 1.0
"""For the answers to requests that were cut off because the service ends."""


class Middleware:
    """An ASGI application around another.

    hosts : what the Host header may say, port aside; None: anything (a Unix socket, which has no names)
    log : takes one line of JSON per request
    """

    def __init__(
        self, app: ASGIApp, settings: ServeSettings, *, hosts: frozenset[str] | None, log: Callable[[str], None]
    ) -> None:
        self.app, self.settings, self.hosts, self.log = app, settings, hosts, log
        self._in_hand: set[asyncio.Future[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the start and end of the service."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, partial(self._until_answered, receive), send)
            return  # websockets are refused by not being accepted
        start = time.perf_counter()
        sent = {"status": 0, "bytes": 0}

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent["status"] = message["status"]
            sent["bytes"] += len(message.get("body", b""))
            await send(message)

        answered = asyncio.get_running_loop().create_future()
        self._in_hand.add(answered)
        try:
            await self._one(scope, receive, counting, sent)
        finally:
            self._in_hand.discard(answered)
            answered.set_result(None)
            peer = scope.get("client")
            self.log(
                log_line(
                    method=scope["method"][:16],
                    path=scope["path"][:LONGEST_PATH],
                    status=scope.get("state", {}).get(ANSWERED, sent["status"] or LEFT),
                    ms=round(1e3 * (time.perf_counter() - start), 2),
                    bytes=sent["bytes"],
                    peer=peer[0] if peer else None,
                )
            )

    async def _until_answered(self, receive: Receive) -> Message:
        """What the server tells the application; that it ends, once those are answered whose requests were cut off."""
        message = await receive()
        if message["type"] == "lifespan.shutdown" and self._in_hand:
            await asyncio.wait(self._in_hand, timeout=LAST_WORDS_S)
        return message

    async def _one(self, scope: Scope, receive: Receive, send: Send, sent: dict[str, int]) -> None:
        try:
            body = await self._admit(scope, receive)
            if body is None:
                return
            async with asyncio.timeout(self.settings.request_s):
                await self._while_wanted(scope, body, receive, send)
        except ReplyError as error:
            await refuse(send, error, close=True)
        except TimeoutError:
            if not sent["status"]:
                limit = f"a reply within {self.settings.request_s:.3g} s"
                await refuse(send, ReplyError(504, ErrorBody("LateError", "took too long", None, limit)))
        except asyncio.CancelledError:  # by the server, which ends and has waited long enough
            if not sent["status"]:
                await refuse(send, ReplyError(503, ErrorBody("EndingError", "the service ends")), close=True)
        except Exception:
            self.log(log_line(level="error", message=traceback.format_exc()))
            if not sent["status"]:
                body_ = ErrorBody(
                    "InternalError", "a defect of the service", hint="The service's stderr has the trace."
                )
                await refuse(send, ReplyError(500, body_))

    async def _while_wanted(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """The application's answer; whatever works on it is cancelled when the caller is gone, or this is cancelled."""
        answering = asyncio.ensure_future(self.app(scope, _given(body), send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            for each in (answering, leaving):
                each.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)

    async def _admit(self, scope: Scope, receive: Receive) -> bytes | None:
        """The request's body; None when the caller is gone. Raises ReplyError."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if self.hosts is not None and _host(headers.get("host", "")) not in self.hosts:
            expected = " or ".join(sorted(self.hosts))
            raise ReplyError(421, ErrorBody("HostError", "another host's name", "Host", expected, headers.get("host")))
        if scope["method"] in ("POST", "PUT", "PATCH"):
            given = headers.get("content-type", "").partition(";")[0].strip().lower()
            if given != "application/json":
                body = ErrorBody("MediaTypeError", "not JSON", "Content-Type", "application/json", given[:100] or None)
                raise ReplyError(415, body)
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length[:20]) > self.settings.body:
            raise self._too_large(length[:20])
        try:
            async with asyncio.timeout(self.settings.read_s):
                return await self._body(receive)
        except TimeoutError:
            limit = f"all of it within {self.settings.read_s:.3g} s"
            raise ReplyError(408, ErrorBody("SlowError", "the request did not come", "body", limit)) from None

    async def _body(self, receive: Receive) -> bytes | None:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.settings.body:
                raise self._too_large("more")
            if not message.get("more_body", False):
                return b"".join(parts)

    def _too_large(self, got: str) -> ReplyError:
        return ReplyError(413, ErrorBody("SizeError", "too large", "body", f"at most {self.settings.body} bytes", got))


def _host(header: str) -> str:
    """The name in a Host header, port taken off."""
    name, colon, port = header.rpartition(":")
    return (name if colon and port.isdigit() else header).strip("[]").lower()


def _given(body: bytes) -> Receive:
    """The body that was read; nothing more is to come."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            await asyncio.Event().wait()  # until it is cancelled
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _gone(receive: Receive) -> None:
    """Until the caller is gone, or has all of its answer."""
    while (await receive())["type"] != "http.disconnect":
        pass


def whole(error: ErrorBody, *, close: bool) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body of an error. `close`: the rest of the request is not wanted."""
    body = msgspec.json.encode(ErrorReply(error))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return headers + [(b"connection", b"close")] * close, body


async def refuse(send: Send, error: ReplyError, *, close: bool = False) -> None:
    """Send an error. `close`: the rest of the request is not wanted."""
    headers, body = whole(error.body, close=close)
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
