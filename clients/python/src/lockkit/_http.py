"""Requests to a service: one of its servers, then the next when that one does not answer.

A request is sent once: who asked knows whether and how to repeat it, and is told whether it may have
been carried out.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any, Callable, List, Optional, Set, TypeVar

from ._connection import Elapsed, Peer, Reply
from ._errors import Error, Refused, Unavailable
from ._settings import Settings
from ._transport_errors import TransportError
from ._wire import Json, problem

T = TypeVar("T")

BY_PROXIES = (408, 429, 502, 503, 504)
"""What a proxy says by itself whose server does not answer, or has too much to do: ask again. The
request may have been carried out."""


class Transport:
    """A service, and connections to it. Belongs to one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._peers = [Peer(server, settings) for server in settings.servers]
        self._current = 0
        self._answered = False
        self._waits: Set[Any] = set()

    async def ask(
        self,
        path: str,
        body: Json,
        read: Callable[[Json], T],
        limit: float,
        until: float = math.inf,
        waiting: bool = False,
    ) -> T:
        """What ``read`` makes of the answer, within so many seconds. Raises the problem that the
        service answers with; ``Unavailable`` when there is no answer; ``Refused`` when there never
        will be one: the same trouble lasts at all servers, and none of them has ever answered.
        After a first answer, such trouble is a certificate that is being exchanged, or one bad
        server behind a balancer, and passes.

        A server that cannot be reached sends the request on to the next one. One that does not
        answer makes the *next* request go to another one: this one may have been carried out.

        At ``until``, a time of the loop, it raises ``Elapsed``: nobody is to blame. ``waiting``: it
        ends with ``interrupt``.
        """
        loop = asyncio.get_running_loop()
        end = min(loop.time() + limit, until)
        payload = json.dumps(body, separators=(",", ":")).encode()
        first, many = self._current, len(self._peers)
        unreached: List[str] = []
        waits: Set[Any] = self._waits if waiting else set()
        for turn in range(many):
            at = (first + turn) % many
            peer = self._peers[at]
            connecting = (end - loop.time()) / (many - turn)
            try:
                reply = await peer.exchange(path, payload, end, connecting, waits)
                answer = self._read(reply, read)
            except TransportError as trouble:
                peer.trouble = trouble
                if not trouble.sent:
                    if loop.time() >= until:
                        raise Elapsed from trouble
                    unreached.append(f"{peer.server}: {trouble}")
                    continue
                self._current = (at + 1) % many
                raise self._failed(f"{peer.server}: {trouble}", sent=True) from trouble
            except Elapsed:
                if loop.time() >= until:
                    raise
                peer.trouble = None
                self._current = (at + 1) % many
                raise Unavailable(f"{peer.server}: no answer in time") from None
            except Error as error:  # of the service
                self._came(at)
                if isinstance(error, Unavailable):
                    self._current = (at + 1) % many
                raise
            self._came(at)
            return answer
        raise self._failed(f"no server can be reached: {'; '.join(unreached)}", sent=False)

    def _came(self, at: int) -> None:
        self._current, self._answered = at, True
        self._peers[at].trouble = None

    def _failed(self, text: str, sent: bool) -> Error:
        lasting = [peer for peer in self._peers if peer.trouble is not None and peer.trouble.lasts]
        if self._answered or len(lasting) < len(self._peers):
            return Unavailable(text, maybe_done=sent)
        said = "; ".join(f"{peer.server}: {peer.trouble}" for peer in lasting)
        return Refused(said, maybe_done=sent)

    def _read(self, reply: Reply, read: Callable[[Json], T]) -> T:
        """Raises ``TransportError`` for what is no answer of a lock service."""
        if reply.kind not in ("application/json", "application/problem+json"):
            what = f"{reply.status}, and no answer of a lock service: check host and port"
            raise TransportError(what, sent=True, lasts=reply.status not in BY_PROXIES)
        try:
            answer: Optional[Json] = json.loads(reply.body)
            if not isinstance(answer, dict):
                raise ValueError
            if reply.kind == "application/problem+json":
                raise problem(answer)
            return read(answer)
        except Error:  # before `ValueError`, which `Invalid` is
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            what = "an answer that no lock service of this version gives: check host and port"
            raise TransportError(f"{reply.status}, and {what}", sent=True, lasts=True) from error

    def interrupt(self) -> None:
        """Ends the requests that wait."""
        for wait in list(self._waits):
            wait.cancel()

    def close(self) -> None:
        """Closes connections that are not in use."""
        for peer in self._peers:
            peer.close()
