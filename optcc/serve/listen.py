"""Sockets, and the server on them until it is told to stop."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from optcc.errors import InputError
from optcc.serve.app import application
from optcc.serve.log import JsonHandler, LogLines, log_line
from optcc.serve.messages import ErrorBody
from optcc.serve.middleware import ANSWERED, Middleware, whole
from optcc.serve.settings import ServeSettings

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
