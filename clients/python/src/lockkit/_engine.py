"""How a lock is had, kept and given back. Everything here runs in one event loop: that of the
caller (``lockkit.aio``) or one in a thread (``lockkit``)."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, Callable, Deque, Dict, Optional, Set, Union

from . import _forks
from ._clock import Clock
from ._errors import (
    Closed,
    Error,
    Invalid,
    LockLost,
    LossReason,
    Unavailable,
)
from ._http import Elapsed, Transport, within
from ._record import Loss, Record, backoff
from ._renewer import Renewer
from ._settings import Settings, this_process
from ._wire import LONGEST_WAIT, Busy, Claim, Ended, Held, Json, State, Waiting, random_id, state


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


Callback = Callable[[LossReason], None]


class Hold:
    """The right to a lock. When nothing refers to it any more, the lock is given back: so a result
    that nobody received, as that of a cancelled call, leaves no lock behind.

    The engine refers to it weakly. What the user has called on a loss belongs to it, and to nothing
    that the engine keeps: it may lead back to the guard.
    """

    def __init__(self, engine: "Engine", record: Record) -> None:
        self.engine = engine
        self.record = record
        self.callbacks: Deque[Callback] = deque()
        record.hold = weakref.ref(self)

    def __del__(self) -> None:
        # An exception from a signal handler may end this early: the renewer looks, too.
        if not self.record.is_over():
            self.engine.abandon(self.record)


class _Again:
    """The claim was lost in line, or granted too late: ask with another one."""


AGAIN = _Again()


class Engine:
    """The claims of one connection object, and the requests about them."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.holder = this_process()
        self._process = _forks.this_process()
        self._transport = Transport(settings)
        self._renewer = Renewer(self)
        self._waits: Set["asyncio.Future[Any]"] = set()
        self._releases: Dict["asyncio.Future[Any]", "asyncio.Event"] = {}
        self._attempting = 0
        self._closed = False

    def check_open(self) -> None:
        if self.is_foreign():
            raise Closed("this process is a fork: connect again in it")
        if self._closed:
            raise Closed

    def is_foreign(self) -> bool:
        """Whether it belongs to the process that this one was forked from."""
        return self._process != _forks.this_process()

    async def ask(self, path: str, body: Json, limit: Optional[float] = None) -> Json:
        """One request, sent once."""
        return await self._transport.ask(path, body, limit or self.settings.timeout)

    # Acquiring.

    async def acquire(self, request: Request, limit: Optional[float]) -> Optional[Hold]:
        """The lock, within so many seconds: 0 does not wait, ``None`` waits for good. ``None`` when
        it was busy for so long."""
        self.check_open()
        if limit is None:
            return await self._attempts(request)
        if limit == 0:
            return await self._try(request)
        try:
            return await within(limit, self._attempts(request))
        except Elapsed:
            return None

    async def _try(self, request: Request) -> Optional[Hold]:
        came = await self._attempt(request, wait=False)
        if isinstance(came, _Again):
            raise Unavailable("the answer came after the lease that it granted was over")
        return came

    async def _attempts(self, request: Request) -> Optional[Hold]:
        attempts = 0
        while True:
            came = await self._attempt(request, wait=True)
            if not isinstance(came, _Again):
                return came
            attempts += 1
            await asyncio.sleep(backoff(attempts))

    async def _attempt(self, request: Request, wait: bool) -> Union[Hold, None, _Again]:
        """One claim on its way. However this ends, but with a hold, the claim is taken out."""
        claim = self._claim(request)
        # `uncertain`: a request got no answer, and may yet put the claim in line.
        # `in_line`: the claim may be in line now. `asking`: a request is under way.
        uncertain = in_line = asking = False
        first, failures = self.clock.now(), 0
        self._attempting += 1
        try:
            while True:
                self.check_open()
                sent = self.clock.now()
                # Later it may have been in line and have ended there: it must not revive.
                if failures and sent >= first + claim.wait_ttl:
                    return AGAIN
                in_line = asking = True
                try:
                    body = {"claim": claim.json(), "no_wait": not wait}
                    came = await self._wait("/v1/acquire", body, claim.wait_ttl / 3)
                except Unavailable as error:
                    asking = False
                    uncertain = uncertain or error.maybe_done
                    in_line = uncertain
                    if not wait:
                        raise
                    failures += 1
                    await asyncio.sleep(backoff(failures))
                    continue
                except Closed:
                    raise
                except Error:
                    asking, in_line = False, uncertain
                    raise
                asking = False
                break
            failures = 0
            while True:
                if isinstance(came, Held):
                    uncertain = uncertain or came.unanswered > 0
                    how = (request.renewed, request.max_hold)
                    record = Record(claim, self.clock, uncertain, *how)
                    if not record.grant(came, sent):
                        return AGAIN
                    in_line = False
                    # Before the renewer knows of it, which gives back what nobody holds.
                    hold = Hold(self, record)
                    self._renewer.enlist(record)
                    return hold
                if isinstance(came, (Busy, Ended)):
                    uncertain = uncertain or (isinstance(came, Busy) and came.unanswered > 0)
                    in_line = uncertain
                    if isinstance(came, Busy):
                        return None if not wait else AGAIN
                    if came.reason is LossReason.BROKEN:
                        raise LockLost(came.reason, came.broken)
                    return AGAIN
                uncertain = uncertain or came.unanswered > 0
                self.check_open()
                # Nothing renews it meanwhile: half of its wait ttl is for the poll, a quarter for
                # the answer, a quarter for asking another server.
                poll = min(LONGEST_WAIT, claim.wait_ttl / 2)
                sent = self.clock.now()
                try:
                    body = {"claim": claim.json(), "wait_ms": int(poll * 1000)}
                    came = await self._wait("/v1/wait", body, claim.wait_ttl / 4, poll)
                    failures = 0
                except Unavailable:
                    failures += 1
                    await asyncio.sleep(backoff(failures))
        finally:
            self._attempting -= 1
            if in_line:
                self._give_back(claim, uncertain or asking)

    def _claim(self, request: Request) -> Claim:
        return Claim(
            id=random_id(),
            prefix=self.settings.prefix,
            name=request.name,
            mode=request.mode,
            permits=request.permits,
            limit=request.limit,
            ttl=request.ttl,
            wait_ttl=request.wait_ttl,
            holder=self.holder,
            note=request.note,
        )

    async def _wait(self, path: str, body: Json, patience: float, poll: float = 0.0) -> State:
        """A request of a claim on its way: ends when this is closed."""
        limit = poll + max(0.1, min(self.settings.timeout, patience))
        asking = asyncio.ensure_future(self.ask(path, body, limit))
        self._waits.add(asking)
        try:
            return state(await within(None, asking))
        except asyncio.CancelledError:
            self.check_open()  # cancelled by `close`, and not by the caller
            raise
        finally:
            self._waits.discard(asking)

    # What can be done with a lock that is held.

    async def release(self, record: Record) -> None:
        """Gives the lock back; raises ``LockLost`` if it was not held until now."""
        loss, claim = record.loss(), record.claim
        if loss is not None and self.is_foreign():
            raise loss.error()  # it is the parent's
        until = self.clock.now() + record.remaining()
        if record.close():
            self._renewer.delist(record)
            if loss is not None:
                # The lease may live longer at the backend: answers to renewals may have been lost.
                self._give_back(claim, record.uncertain)
        elif loss is None:
            return
        if loss is not None:
            raise loss.error()
        found, attempts = "", 0
        try:
            while not found:
                try:
                    found = await self._released(claim)
                except Unavailable:
                    attempts += 1
                    if attempts == 2:
                        raise
        finally:
            if not found or record.uncertain:
                self._give_back(claim, record.uncertain)
        # An attempt whose answer was lost may have released it.
        if found != "claim" and attempts == 0:
            vanished = self.clock.now() < until
            raise LockLost(LossReason.VANISHED if vanished else LossReason.EXPIRED)

    async def verify(self, record: Record) -> None:
        """Asks the backend whether the lock is held. It renews, too."""
        record.token()
        sent = self.clock.now()
        answer = await self.ask("/v1/verify", {"claim": record.claim.json()})
        self.renewed(record, state(answer), sent)
        record.token()

    async def downgrade(self, record: Record) -> None:
        """Lets readers in beside the one that wrote."""
        if record.claim.mode != "exclusive":
            raise Invalid("only a lock that is held for writing can be downgraded")
        failures = 0
        while True:
            record.token()
            sent = self.clock.now()
            limit = max(0.1, min(self.settings.timeout, record.remaining()))
            try:
                answer = await self.ask("/v1/downgrade", {"claim": record.claim.json()}, limit)
            except Unavailable:
                failures += 1
                await asyncio.sleep(min(backoff(failures), record.remaining()))
                continue
            came = state(answer)
            if isinstance(came, Held):
                record.claim = replace(record.claim, mode="shared")
            self.renewed(record, came, sent)
            record.token()
            return

    def renewed(self, record: Record, came: State, sent: float) -> None:
        """Takes the answer to a renewal that was sent at ``sent``."""
        if record.is_over():
            return
        record.renewed(came, sent)
        if record.is_over():
            self._renewer.delist(record)
            if record.uncertain or isinstance(came, Waiting):
                self._give_back(record.claim, record.uncertain)
        else:
            self._renewer.schedule(record)

    async def _released(self, claim: Claim) -> str:
        answer = await self.ask("/v1/release", {"claim": claim.json()})
        return str(answer["found"])

    # Giving back in the background.

    def abandon(self, record: Record) -> None:
        """Gives a lock back that nothing refers to. From any thread."""
        if self.is_foreign():
            return
        try:
            self.loop.call_soon_threadsafe(self.abandoned, record)
        except RuntimeError:
            pass  # The loop has ended: the lock ends with its lease.

    def abandoned(self, record: Record) -> None:
        if record.close():
            self._renewer.delist(record)
            self._give_back(record.claim, record.uncertain)

    def expired(self, record: Record) -> None:
        """The deadline of a lock has passed. Its lease ends in full: whoever worked under it may
        not have noticed yet."""
        lease_end = record.lease_end()
        if record.expire():
            self._give_back(record.claim, record.uncertain, lease_end)

    def _give_back(self, claim: Claim, uncertain: bool, not_before: float = 0.0) -> None:
        told = asyncio.Event()
        task = self.loop.create_task(self._giving_back(claim, uncertain, not_before, told))
        self._releases[task] = told
        task.add_done_callback(lambda it: self._releases.pop(it, None))

    async def _giving_back(
        self, claim: Claim, uncertain: bool, not_before: float, told: asyncio.Event
    ) -> None:
        """Releases a claim until the service says that it did, or until its lease is over anyway;
        when an acquire may still be under way, again and again until then."""
        while not_before > self.clock.now():
            await asyncio.sleep(min(1.0, not_before - self.clock.now()))
        give_up = self.clock.now() + max(claim.ttl, claim.wait_ttl)
        attempts = 0
        while True:
            try:
                await self._released(claim)
                told.set()
                if not uncertain:
                    return
            except Unavailable:
                pass
            except Exception:  # refused: it would be again
                told.set()
                return
            if self.clock.now() >= give_up:
                told.set()
                return
            attempts += 1
            await asyncio.sleep(backoff(attempts))

    async def close(self, limit: float) -> None:
        """Ends what waits, gives back what is held, and waits until the service knows, for so many
        seconds at most."""
        if self._closed:
            return
        self._closed = True
        for wait in list(self._waits):
            wait.cancel()
        for record in self._renewer.stop():
            claim, uncertain = record.claim, record.uncertain
            if record.lose(Loss(LossReason.CLOSED)):
                self._give_back(claim, uncertain)
        until = self.loop.time() + limit
        # What was cancelled orders its releases.
        while self._attempting and self.loop.time() < until:
            await asyncio.sleep(0.005)
        while True:
            pending = [told.wait() for task, told in self._releases.items() if not told.is_set()]
            left = until - self.loop.time()
            if not pending or left <= 0:
                for wait_for in pending:
                    wait_for.close()
                break
            try:
                await within(left, asyncio.gather(*pending))
            except Elapsed:
                break
        releases = list(self._releases)
        for task in releases:
            task.cancel()
        await asyncio.gather(*releases, return_exceptions=True)
        self._transport.close()
        await asyncio.sleep(0)  # connections end in the next turn of the loop
