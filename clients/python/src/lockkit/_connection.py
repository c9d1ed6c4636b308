"""HTTP/1.1 with one server, over asyncio's streams: a request is sent once, and its answer is read.

A time limit cuts the connection. No task is cancelled for it, so that it cannot be mistaken for a
cancellation by the caller, or swallow one.
"""

from __future__ import annotations

import asyncio
from typing import Any, Awaitable, Dict, List, NamedTuple, Optional, Set, Tuple

from . import _transport_errors
from ._settings import Server, Settings
from ._transport_errors import NoSuchName, TransportError

CONNECTING = 2.0
"""The longest time for a connection, in seconds."""
IDLE = 20.0
"""How long an unused connection is kept, in seconds."""
MOST_IDLE = 16
LONGEST_HEAD = 64 << 10
LONGEST_BODY = 64 << 20
NAME_PATIENCE = 30.0
"""How long a name may be unknown before that is taken for its last word, in seconds."""


class Elapsed(Exception):
    """The time for something is over."""


class Reply(NamedTuple):
    status: int
    kind: str
    body: bytes


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.unused_since = 0.0
        self.cut = False

    def cancel(self) -> None:
        """Ends what is read from it."""
        self.cut = True
        self.writer.transport.abort()


class Peer:
    """One server, and connections to it that wait for their next request."""

    def __init__(self, server: Server, settings: Settings) -> None:
        self.server = server
        self.trouble: Optional[TransportError] = None
        """Why it did not answer last; ``None`` when it did, or was not asked."""
        self._tls = settings.tls
        self._token = f"authorization: Bearer {settings.token}\r\n" if settings.token else ""
        self._idle: List[_Connection] = []
        self._nameless_since: Optional[float] = None

    async def exchange(
        self, path: str, body: bytes, until: float, connecting: float, waits: Set[Any]
    ) -> Reply:
        """The answer, until a time of the loop. Raises ``TransportError``. What is in ``waits`` meanwhile
        can be cancelled: then it is as if the time was over."""
        loop = asyncio.get_running_loop()
        connection = self._take()
        if connection is None:
            connection = await self._connect(min(connecting, CONNECTING), waits)
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {self.server.authority}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"{self._token}\r\n"
        )
        reusable = False
        limit = loop.call_at(until, connection.cancel)
        waits.add(connection)
        try:
            connection.writer.write(head.encode() + body)
            reply, reusable = await _reply(connection.reader)
            return reply
        except (OSError, EOFError) as error:
            if connection.cut:
                raise Elapsed from error
            raise _transport_errors.of(error, sent=True) from error
        except (asyncio.LimitOverrunError, ValueError) as error:
            raise TransportError(_transport_errors.SPEAKS_OTHER, sent=True, lasts=True) from error
        finally:
            limit.cancel()
            waits.discard(connection)
            if reusable and not connection.cut and len(self._idle) < MOST_IDLE:
                connection.unused_since = loop.time()
                self._idle.append(connection)
            else:
                connection.writer.transport.abort()

    def _take(self) -> Optional[_Connection]:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            # A server that ended has closed it; a request on it would have an unknown fate.
            gone = connection.reader.at_eof() or connection.writer.is_closing()
            if not gone and now - connection.unused_since < IDLE:
                return connection
            connection.writer.transport.abort()
        return None

    async def _connect(self, limit: float, waits: Set[Any]) -> _Connection:
        server = self.server
        if server.path:
            opening: Awaitable[Any] = asyncio.open_unix_connection(server.path, limit=LONGEST_HEAD)
        else:
            opening = asyncio.open_connection(
                server.host, server.port, limit=LONGEST_HEAD, ssl=self._tls
            )
        task = asyncio.ensure_future(opening)
        waits.add(task)
        try:
            # Only a cancellation of the caller is raised here.
            await asyncio.wait({task}, timeout=limit)
            if not task.done():
                raise TransportError("no connection in time", sent=False)
            if task.cancelled():
                raise TransportError("this was closed", sent=False)
            reader, writer = task.result()
        # At the end of a program, Python refuses to look up a name (RuntimeError).
        except (OSError, EOFError, RuntimeError, UnicodeError) as error:
            raise self._unreached(_transport_errors.of(error, sent=False)) from error
        finally:
            waits.discard(task)
            task.cancel()
        return _Connection(reader, writer)

    def _unreached(self, trouble: TransportError) -> TransportError:
        now = asyncio.get_running_loop().time()
        if not isinstance(trouble, NoSuchName):
            self._nameless_since = None
        elif self._nameless_since is None:
            self._nameless_since = now
        else:
            trouble.lasts = now - self._nameless_since >= NAME_PATIENCE
        return trouble

    def close(self) -> None:
        """Closes connections that are not in use."""
        for connection in self._idle:
            connection.writer.transport.abort()
        self._idle.clear()


async def _reply(reader: asyncio.StreamReader) -> Tuple[Reply, bool]:
    """The next answer, and whether another one can follow on this connection."""
    while True:
        # What speaks first, or answers with a line, may never send the end of a head.
        begin = await _first(reader, b"HTTP/")
        head = (begin + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        version, code = (head[0].split(" ", 2) + ["", ""])[:2]
        status = int(code)
        if not 100 <= status < 200:
            break
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
    return Reply(status, kind, body), reusable


async def _first(reader: asyncio.StreamReader, expected: bytes) -> bytes:
    received = b""
    while len(received) < len(expected):
        more = await reader.read(len(expected) - len(received))
        if not more and not received:
            raise EOFError
        received += more
        if not expected.startswith(received) or not more:
            raise _transport_errors.of_bytes(received)
    return received


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
