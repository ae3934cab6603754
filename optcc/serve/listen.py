"""Sockets, the server on them until it is told to stop, its log, and what stands between a socket and the routes.

Between them are limits of size, time and number, and who may ask. A page in somebody's browser can reach a loopback
port, too. It cannot send application/json to another origin without asking first, which nothing here allows; and a name
of its own that it has made to point here is not a name in `hosts`.

The log is lines of JSON that wait for no reader: what nobody takes away in time is dropped, counted and told later.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import signal
import socket
import stat
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h11
import msgspec
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from optcc.errors import InputError
from optcc.serve.app import application
from optcc.serve.requests import ErrorBody, ErrorReply, ReplyError, ServeSettings

MOST = 2**20
"""Bytes of lines that wait to be written."""
PAUSE_S = 0.05
"""Before a descriptor that does not block is tried again."""


def log_line(**values: Any) -> str:
    """One line, with the time it was made."""
    return json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **values})


class LogLines:
    """Writes lines to a descriptor from a thread of its own, so that a full pipe holds up nothing else.

    dropped : lines that found no room, or that the descriptor did not take
    """

    def __init__(self, descriptor: int, most: int = MOST) -> None:
        self.dropped = 0
        self._descriptor, self._most = descriptor, most
        self._lines: deque[bytes] = deque()
        self._held, self._told, self._ended = 0, 0, False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._write, name="optcc-log", daemon=True)
        self._thread.start()

    def __call__(self, line: str) -> None:
        """Write `line` when there is room."""
        data = line.encode(errors="replace") + b"\n"
        with self._changed:
            if self._held + len(data) > self._most:
                self.dropped += 1
                return
            self._lines.append(data)
            self._held += len(data)
            self._changed.notify()

    def close(self, limit_s: float = 1.0) -> None:
        """No more lines; those that wait are written if that takes no longer than `limit_s`."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(limit_s)

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._ended)
                if not self._lines:
                    return
                line = self._lines.popleft()
            try:
                self._all_of(line)
                if (dropped := self.dropped) > self._told:
                    self._all_of(log_line(dropped=dropped).encode() + b"\n")
                    self._told = dropped
            except OSError:  # its reader is gone, or the disk is full
                with self._changed:
                    self.dropped += 1
            with self._changed:
                self._held = sum(map(len, self._lines))

    def _all_of(self, line: bytes) -> None:
        while line:
            try:
                line = line[os.write(self._descriptor, line) :]
            except BlockingIOError:
                time.sleep(PAUSE_S)


class JsonHandler(logging.Handler):
    """What libraries log, as lines of JSON."""

    def __init__(self, log: LogLines) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """One line; a traceback is part of it."""
        self._log(log_line(level=record.levelname.lower(), message=self.format(record)))


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


BACKLOG = 128
SWITCH_S = 0.0005
"""Seconds between turns of this process's threads (Python's default is 5 ms). An event takes some ten turns beside a
thread that computes, such as one that registers a large cluster."""
LISTENS_S = 0.25
"""Between two interim replies to a sender that has closed its direction."""
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def tcp_socket(address: str, port: int, *, remote: bool) -> socket.socket:
    """A listening socket on a numeric address. Raises InputError for one that others can reach unless `remote`."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        expected = "a numeric address such as 127.0.0.1 or ::1"
        raise InputError("not an address", where="--address", expected=expected, got=address[:100]) from None
    if not parsed.is_loopback and not remote:
        raise InputError(
            "an address that other machines can reach",
            where="--address",
            expected="a loopback address such as 127.0.0.1",
            got=address,
            hint="There is neither encryption nor a password: whoever reaches the port can change every job's plan. "
            "Where that is meant, add --allow-remote.",
        )
    family = socket.AF_INET6 if parsed.version == 6 else socket.AF_INET
    # By its number asyncio knows that it is TCP, and turns off the delay of small packets, 40 ms a reply.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((address, port))
        made.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        made.close()
        raise InputError(
            "cannot be listened on",
            where=f"{address}:{port}",
            expected="a free port of this machine",
            got=getattr(error, "strerror", None) or str(error),
        ) from None
    return made


def unix_socket(path: Path) -> socket.socket:
    """A listening socket that only its owner may use (mode 0600). What a dead service left there is replaced.

    Raises InputError where something else is, or a service that lives.
    """
    made = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()
        # From its first moment on, so that nobody gets in between bind and chmod.
        mask = os.umask(0o177)
        try:
            made.bind(str(path))
        finally:
            os.umask(mask)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise InputError(
            "cannot be listened on",
            where=str(path),
            expected="a path of a folder that exists, with nothing there, of at most 107 bytes",
            got=error.strerror or str(error),
        ) from None
    return made


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
        return True


class _Impatient(H11Protocol):
    """Closes a connection whose request header does not come, or whose replies are not read. Between requests uvicorn
    has a limit; it waits for ever until its reply is read. Where there are as many as may be, the oldest of those that
    have asked for nothing makes room."""

    settings: ServeSettings
    log: Callable[[str], None]
    _header: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _listens: asyncio.TimerHandle | None = None
    _ended = False
    _made = 0.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._made = self.loop.time()
        if len(self.connections) > 2 * self.settings.concurrent:
            others = [each for each in self.connections if isinstance(each, _Impatient) and each is not self]
            asking = (each for each in others if not each.answering)
            min(asking, key=lambda each: each._made, default=self).transport.abort()
        self._expect_header()

    @property
    def answering(self) -> bool:
        """A whole request is there, and its answer not yet."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._header, self._unread, self._listens):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request of HTTP as every error is answered, where nothing has been answered yet."""
        why = sys.exception()
        got = str(why)[:200] if isinstance(why, h11.RemoteProtocolError) else msg
        self._answer(400, "Bad Request", ErrorBody("RequestError", "not HTTP", "request", "a request of HTTP/1.1", got))

    def _answer(self, status: int, reason: str, error: ErrorBody) -> None:
        """Answer a request that does not come to the application, or not whole, and close."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        headers, body = whole(error, close=True)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.scope["state"][ANSWERED] = status  # its log line comes from where it was taken in
        else:
            peer = self.client[0] if self.client else None
            self.log(log_line(method=None, path=None, status=status, ms=0, bytes=len(body), peer=peer))
        for event in (
            h11.Response(status_code=status, headers=headers, reason=reason), h11.Data(data=body), h11.EndOfMessage(),
        ):  # fmt: skip
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio takes the answer
        """Nothing more comes. A whole request is answered still: its sender may have closed one direction alone. Of one
        that is not whole its sender is told so. Whether the connection stays open."""
        self._ended = True
        if self.answering:
            self._ask_whether_it_listens()
            return True
        try:
            self.conn.receive_data(b"")
            self.conn.next_event()
        except h11.RemoteProtocolError as error:
            self.send_400_response(str(error))
        return False

    def _ask_whether_it_listens(self) -> None:
        """A sender that has closed both directions answers an interim reply with a reset: the work for it ends then."""
        if not self.answering or self.cycle.response_started or self.transport.is_closing():
            return
        if self.cycle.scope["http_version"] == "1.1":
            self.transport.write(
                self.conn.send(h11.InformationalResponse(status_code=100, headers=[], reason="Continue"))
            )
        self._listens = self.loop.call_later(LISTENS_S, self._ask_whether_it_listens)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.settings.request_s, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._ended and not self.answering:
            self.transport.close()
        self._expect_header()

    def _expect_header(self) -> None:
        if self._header is not None:
            self._header.cancel()
        self._header = self.loop.call_later(self.settings.read_s, self._close_if_none_came)

    def _close_if_none_came(self) -> None:
        if self.transport.is_closing():  # and did not come to it, for what is left to be read
            self.transport.abort()
            return
        if self.cycle is None or self.cycle.response_complete:
            if self.conn.trailing_data[0]:  # some of a header
                limit = f"all of it within {self.settings.read_s:.3g} s"
                self._answer(
                    408, "Request Timeout", ErrorBody("SlowError", "the request did not come", "header", limit)
                )
            self.transport.close()
        self._expect_header()


def serve(
    listener: socket.socket,
    settings: ServeSettings,
    *,
    names: frozenset[str] | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT: no more connections then, requests in hand are finished within `drain_s`.

    The log goes to standard error, whether anybody reads it or not.
    names : what the Host header may say on TCP besides the loopback names; None: anything. `ready` is called once
    connections are accepted.
    """
    local = listener.family == socket.AF_UNIX
    hosts = None if local or names is None else names | LOCAL_NAMES
    log = LogLines(sys.__stderr__.fileno() if sys.__stderr__ else os.open(os.devnull, os.O_WRONLY))
    libraries = JsonHandler(log)
    protocol = type("Impatient", (_Impatient,), {"settings": settings, "log": staticmethod(log)})
    config = uvicorn.Config(
        Middleware(application(settings, lambda: log.dropped), settings, hosts=hosts, log=log),
        http=protocol,
        loop="asyncio",
        ws="none",
        interface="asgi3",
        lifespan="on",
        access_log=False,
        log_config=None,
        log_level="error",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=max(1, round(settings.read_s)),
        h11_max_incomplete_event_size=32 * 1024,
    )
    config.timeout_graceful_shutdown = settings.drain_s  # type: ignore[assignment]  # it waits for fractions, too
    server = uvicorn.Server(config)

    async def run() -> None:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            ready()
        await serving

    sys.setswitchinterval(SWITCH_S)
    # uvicorn raises the signal once more after it has stopped; having stopped is all that it was for.
    before = {sign: signal.signal(sign, lambda *_: None) for sign in (signal.SIGTERM, signal.SIGINT)}
    logging.getLogger().addHandler(libraries)
    try:
        asyncio.run(run())
    finally:
        logging.getLogger().removeHandler(libraries)
        log.close()
        for sign, handler in before.items():
            signal.signal(sign, handler)


def identity(path: Path) -> tuple[int, int, int] | None:
    """What tells the socket at `path` from another one there later; None where there is none.

    The time is of its making: a number of an inode is given out again.
    """
    try:
        found = path.lstat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_mtime_ns) if stat.S_ISSOCK(found.st_mode) else None


def forget_unix_socket(path: Path, ours: tuple[int, int, int] | None) -> None:
    """Take the socket away if it still is `ours`, not that of a service that came after."""
    if ours is not None and identity(path) == ours:
        path.unlink(missing_ok=True)
