"""Requests to a service: one of its servers, then the next when that one does not answer.

HTTP/1.1 over asyncio's streams. A request is sent once: who asked knows whether and how to repeat
it, and is told whether it may have been carried out.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Awaitable, Dict, List, NamedTuple, Optional, Tuple, TypeVar

from ._errors import Refused, Unavailable
from ._settings import Server, Settings
from ._wire import Json, problem

T = TypeVar("T")

CONNECTING = 2.0
"""The longest time for a connection, in seconds."""
IDLE = 20.0
"""How long an unused connection is kept, in seconds."""
MOST_IDLE = 16
BY_PROXIES = (408, 429, 502, 503, 504)
"""What a proxy says by itself whose server does not answer, or has too much to do: ask again. The
request may have been carried out."""
LONGEST_HEAD = 64 << 10
LONGEST_BODY = 64 << 20


class Elapsed(Exception):
    """The time for something is over."""


async def within(limit: Optional[float], work: Awaitable[T]) -> T:
    """The result of ``work``, or ``Elapsed`` after so many seconds, and ``work`` is cancelled.

    Not ``asyncio.wait_for``: before Python 3.12 that may swallow the cancellation of its caller.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda it: it.cancelled() or it.exception())
    try:
        await asyncio.wait({task}, timeout=limit)
        if task.done():
            return task.result()
        raise Elapsed
    finally:
        task.cancel()


class NotSent(Exception):
    """The request certainly did not leave."""


class Transport:
    """A service, and connections to it. Belongs to one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._peers = [_Peer(server, settings) for server in settings.servers]
        self._current = 0

    async def ask(self, path: str, body: Json, limit: float) -> Json:
        """The answer, within so many seconds. Raises the problem that the service answers with, and
        ``Unavailable`` when there is no answer.

        A server that cannot be reached sends the request on to the next one. One that does not
        answer makes the *next* request go to another one: this one may have been carried out.
        """
        until = asyncio.get_running_loop().time() + limit
        payload = json.dumps(body, separators=(",", ":")).encode()
        first, many = self._current, len(self._peers)
        unreachable: List[str] = []
        for turn in range(many):
            at = (first + turn) % many
            peer = self._peers[at]
            left = until - asyncio.get_running_loop().time()
            try:
                reply = await peer.exchange(path, payload, left, left / (many - turn))
            except NotSent as error:
                unreachable.append(f"{peer.server}: {error}")
                continue
            except (OSError, EOFError, asyncio.LimitOverrunError, ValueError, Elapsed) as error:
                self._current = (at + 1) % many
                said = "no answer in time" if isinstance(error, Elapsed) else str(error)
                raise Unavailable(f"{peer.server}: {said}") from error
            return self._read(at, reply)
        raise Unavailable(f"no server can be reached: {'; '.join(unreachable)}", maybe_done=False)

    def _read(self, at: int, reply: "_Reply") -> Json:
        self._current = at
        if reply.kind not in ("application/json", "application/problem+json"):
            what = f"{reply.status}, and no answer of a lock service: check host and port"
            said = f"{self._peers[at].server}: {what}"
            if reply.status not in BY_PROXIES:
                raise Refused(said)
            self._current = (at + 1) % len(self._peers)
            raise Unavailable(said)
        try:
            answer = json.loads(reply.body)
        except ValueError as error:
            raise Refused(f"{self._peers[at].server}: an answer that is no JSON") from error
        if not isinstance(answer, dict):
            raise Refused(f"{self._peers[at].server}: an answer of another version")
        if reply.kind == "application/problem+json":
            if answer.get("code") == "unavailable":
                self._current = (at + 1) % len(self._peers)
            raise problem(answer)
        return answer

    def close(self) -> None:
        """Closes connections that are not in use."""
        for peer in self._peers:
            peer.close()


class _Reply(NamedTuple):
    status: int
    kind: str
    body: bytes


class _Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    since: float


class _Peer:
    """One server, and connections to it that wait for their next request."""

    def __init__(self, server: Server, settings: Settings) -> None:
        self.server = server
        self._tls = settings.tls
        self._token = f"authorization: Bearer {settings.token}\r\n" if settings.token else ""
        self._idle: List[_Connection] = []

    async def exchange(self, path: str, body: bytes, limit: float, connecting: float) -> _Reply:
        loop = asyncio.get_running_loop()
        until = loop.time() + limit
        connection = self._take() or await self._connect(min(connecting, CONNECTING))
        reader, writer, _ = connection
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {self.server.authority}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"{self._token}\r\n"
        )
        reusable = False
        try:
            writer.write(head.encode() + body)
            reply, reusable = await within(until - loop.time(), _reply(reader))
            return reply
        finally:
            if reusable and len(self._idle) < MOST_IDLE:
                self._idle.append(connection._replace(since=loop.time()))
            else:
                writer.transport.abort()

    def _take(self) -> Optional[_Connection]:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            # A server that ended has closed it; a request on it would have an unknown fate.
            gone = connection.reader.at_eof() or connection.writer.is_closing()
            if not gone and now - connection.since < IDLE:
                return connection
            connection.writer.transport.abort()
        return None

    async def _connect(self, limit: float) -> _Connection:
        server = self.server
        try:
            if server.path:
                opening: Awaitable[Any] = asyncio.open_unix_connection(
                    server.path, limit=LONGEST_HEAD
                )
            else:
                opening = asyncio.open_connection(
                    server.host, server.port, limit=LONGEST_HEAD, ssl=self._tls
                )
            reader, writer = await within(limit, opening)
        except Elapsed as error:
            raise NotSent("no connection in time") from error
        # At the end of a program, Python refuses to look up a name (RuntimeError).
        except (OSError, EOFError, RuntimeError) as error:
            raise NotSent(getattr(error, "strerror", None) or str(error)) from error
        return _Connection(reader, writer, 0.0)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().writer.transport.abort()


async def _reply(reader: asyncio.StreamReader) -> Tuple[_Reply, bool]:
    """The next answer, and whether another one can follow on this connection."""
    status = 100
    while 100 <= status < 200:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        version, code = (head[0].split(" ", 2) + ["", ""])[:2]
        status = int(code)
    headers: Dict[str, str] = {}
    for line in head[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    reusable = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _chunks(reader)
    elif "content-length" in headers:
        length = int(headers["content-length"])
        if not 0 <= length <= LONGEST_BODY:
            raise ValueError("an answer that is too long")
        body = await reader.readexactly(length)
    else:
        body, reusable = await reader.read(LONGEST_BODY), False
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return _Reply(status, kind, body), reusable


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    """A body in chunks, as proxies send it."""
    body = bytearray()
    while True:
        size = int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16)
        if size == 0:
            break
        if len(body) + size > LONGEST_BODY:
            raise ValueError("an answer that is too long")
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return bytes(body)
