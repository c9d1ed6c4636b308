"""One claim on its way into the queue of a lock, until it holds or is taken out again."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Optional, Tuple, TypeVar, Union

from ._errors import Error, LockLost, LossReason, Refused, Unavailable
from ._record import Record, backoff
from ._wire import LONGEST_WAIT, Claim, Ended, Held, Json, State, Waiting, random_id
from ._wire import marked, renewals, state

if TYPE_CHECKING:
    from ._engine import Engine, Hold

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """What one operation asks for. Durations are in seconds."""

    name: str
    mode: str
    ttl: float
    wait_ttl: float
    permits: Optional[int] = None
    limit: Optional[int] = None
    note: Optional[str] = None
    renewed: bool = True
    max_hold: Optional[float] = None
    at_least: Optional[float] = None
    lock_delay: float = 0.0

    @property
    def lease(self) -> float:
        """What the claim asks for: a process that dies leaves a lease that lasts for the least hold,
        and behind it for the lock delay."""
        return max(self.ttl, self.at_least or 0.0) + self.lock_delay


class RetryAcquire:
    """The claim was lost in the queue, or granted too late: ask with another one."""


RETRY = RetryAcquire()
AcquireResult = Union["Hold", None, RetryAcquire]


class Attempt:
    """A claim, and the requests that take it to its lock. However this ends, but with a hold, the
    claim is taken out."""

    def __init__(self, engine: "Engine", request: Request, wait: bool, until: float) -> None:
        self._engine = engine
        self._request = request
        self._wait = wait
        self._until = until
        self._claim = Claim(
            id=random_id(),
            namespace=engine.settings.namespace,
            name=request.name,
            mode=request.mode,
            permits=request.permits,
            limit=request.limit,
            ttl=request.lease,
            wait_ttl=request.wait_ttl,
            holder=engine.holder,
            note=marked(request.note, request.lock_delay),
        )
        self._uncertain = False
        """A request got no answer, and may yet put the claim into the queue."""
        self._queued = False
        """The claim may be in the queue now."""
        self._asking = False
        """A request is under way."""
        self._round_trip = 0.0

    async def run(self) -> AcquireResult:
        """The hold; ``None`` when the lock was busy. Raises ``Elapsed`` when the time is over."""
        try:
            entered = await self._enter()
            if entered is None:
                return RETRY
            (result, sent), polled = entered, False
            while isinstance(result, Waiting):
                self._uncertain = self._uncertain or result.ambiguous > 0
                (result, sent), polled = await self._poll(), True
            if polled and isinstance(result, Held) and self._record(result, sent) is None:
                # The poll was sent longer ago than the ttl, and was answered when the lock was granted:
                # an answer to another one, which renews, says how much is left.
                result, sent = await self._poll()
            return await self._settled(result, sent)
        finally:
            if self._queued:
                self._engine.give_back(self._claim, self._uncertain or self._asking)

    async def _enter(self) -> Optional[Tuple[State, float]]:
        """The answer to the acquire, and when it was asked; ``None``: too late for this claim."""
        engine, claim = self._engine, self._claim
        first, failures = engine.clock.now(), 0
        while True:
            engine.check_open()
            sent = engine.clock.now()
            # Later it may have been in line and have ended there: it must not revive.
            if failures and sent >= first + claim.wait_ttl:
                return None
            self._queued = self._asking = True
            try:
                body = {"claim": claim.json(), "no_wait": not self._wait}
                result = await self._ask("/v1/acquire", body, state, claim.wait_ttl / 3)
            except Error as error:
                self._asking = False
                self._uncertain = self._uncertain or error.maybe_done
                self._queued = self._uncertain
                if isinstance(error, (Unavailable, Refused)):
                    engine.check_open()
                if not isinstance(error, Unavailable) or not self._wait:
                    raise
                failures += 1
                await engine.pause(error, failures, self._until)
                continue
            self._asking = False
            self._round_trip = engine.clock.now() - sent
            return result, sent

    async def _poll(self) -> Tuple[State, float]:
        """Asks for the state of the claim, which waits for a change."""
        engine, claim = self._engine, self._claim
        failures = 0
        while True:
            engine.check_open()
            # Nothing renews it meanwhile: half of its wait ttl is for the poll, a quarter for the
            # answer, a quarter for asking another server.
            poll = min(LONGEST_WAIT, claim.wait_ttl / 2)
            sent = engine.clock.now()
            try:
                body = {"claim": claim.json(), "wait_ms": int(poll * 1000)}
                return await self._ask("/v1/wait", body, state, claim.wait_ttl / 4, poll), sent
            except Unavailable as error:
                engine.check_open()
                failures += 1
                await engine.pause(error, failures, self._until)

    async def _settled(self, result: State, sent: float) -> AcquireResult:
        if isinstance(result, Ended):
            self._queued = self._uncertain or result.stays
            if result.reason is LossReason.BROKEN:
                raise LockLost(result.reason, result.broken)
            return RETRY
        self._uncertain = self._uncertain or result.ambiguous > 0
        if isinstance(result, Held):
            return await self._granted(result, sent)
        # One that held, and waits now, is in the queue: the backend lost what it knew.
        self._queued = self._uncertain or isinstance(result, Waiting)
        return RETRY if self._wait else None

    async def _granted(self, held: Held, sent: float) -> AcquireResult:
        record = self._record(held, sent)
        if record is not None and record.is_short(self._round_trip):
            record = await self._lengthened(record)
        if record is None:
            return RETRY
        hold = self._engine.holds(record)
        self._queued = False
        return hold

    def _record(self, held: Held, sent: float) -> Optional[Record]:
        """A lock that is valid; ``None`` where the answer result after the lease."""
        request = self._request
        how = (request.renewed, request.max_hold, request.at_least, request.lock_delay)
        record = Record(self._claim, self._engine.clock, self._uncertain, *how)
        return record if record.grant(held, sent) else None

    async def _lengthened(self, record: Record) -> Optional[Record]:
        """Renews a lease of which so little is left that its first use might fail; asks so until it
        is over: one that waited for an hour does not give up its lock for a lost packet.

        The caller does not have the lock yet, so an answer may come after the deadline of the first
        one: what it says counts from its own request.
        """
        engine, failures = self._engine, 0
        while record.remaining() > 0:
            engine.check_open()
            sent, body = engine.clock.now(), {"claims": [self._claim.json()]}
            try:
                (answer,) = await self._ask("/v1/renew", body, renewals, self._claim.ttl)
                result = state(answer)
                return self._record(result, sent) if isinstance(result, Held) else None
            except Unavailable as error:
                engine.check_open()
                failures += 1
                engine.retrying(error)
                await asyncio.sleep(min(backoff(failures), record.remaining()))
            except (LookupError, TypeError, ValueError) as error:
                if isinstance(error, Error):
                    raise
                raise Refused("an answer of another version of the service") from error
        return None

    async def _ask(
        self,
        path: str,
        body: Json,
        read: Callable[[Json], T],
        patience: float,
        poll: float = 0.0,
    ) -> T:
        """A request of a claim on its way: ends when this is closed."""
        limit = poll + max(0.1, min(self._engine.settings.timeout, patience))
        return await self._engine.ask(path, body, read, limit, self._until, waiting=True)


async def acquire(engine: "Engine", request: Request, limit: Optional[float]) -> AcquireResult:
    """The lock, within so many seconds: 0 does not wait, ``None`` waits for good."""
    until = math.inf if not limit else engine.loop.time() + limit
    first, attempts = engine.clock.now(), 0
    while True:
        result = await Attempt(engine, request, limit != 0, until).run()
        if not isinstance(result, RetryAcquire):
            return result
        if limit == 0 and engine.clock.now() >= first + request.ttl:
            raise Unavailable("the answer result after the lease that it granted was over")
        attempts += 1
        await engine.sleep(backoff(attempts), until)
