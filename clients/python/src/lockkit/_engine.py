"""How a lock is had, kept and given back. Everything here runs in one event loop: that of the
caller (``lockkit.aio``) or one in a thread (``lockkit``)."""

from __future__ import annotations

import asyncio
import logging
import math
import weakref
from collections import deque
from dataclasses import replace
from typing import Callable, Deque, Dict, Optional, TypeVar

from . import _acquire, _forks
from ._acquire import RetryAcquire, Request
from ._clock import Clock
from ._connection import Elapsed
from ._errors import Closed, Error, Invalid, LossReason, Unavailable, Unsupported
from ._http import Transport
from ._record import Loss, Record, backoff
from ._renewer import Renewer
from ._settings import Settings, this_process
from ._wire import Claim, Ended, Held, Json, State, Waiting, found, shortened, state

T = TypeVar("T")

LOG = logging.getLogger("lockkit")
WARN_EVERY = 30.0
"""How often the log says that the service does not answer, in seconds."""

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
        if not self.record.is_done():
            self.engine.abandon(self.record)


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
        self._releases: Dict["asyncio.Future[None]", "asyncio.Event"] = {}
        self._next_warning = -math.inf
        self._troubled = False
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

    async def ask(
        self,
        path: str,
        body: Json,
        read: Callable[[Json], T],
        limit: Optional[float] = None,
        until: float = math.inf,
        waiting: bool = False,
    ) -> T:
        """One request, sent once; see ``Transport.ask``."""
        limit = limit or self.settings.timeout
        answer = await self._transport.ask(path, body, read, limit, until, waiting)
        if self._troubled:
            self._troubled = False
            LOG.info("the lock service answers again")
        return answer

    def retrying(self, error: Error) -> None:
        """Says now and then that a request failed which is repeated: for all that wait, once."""
        self._troubled = True
        now = self.loop.time()
        if now >= self._next_warning:
            self._next_warning = now + WARN_EVERY
            LOG.warning("the lock service does not answer, and is asked again: %s", error)

    async def pause(self, error: Error, failures: int, until: float = math.inf) -> None:
        """Before a request is repeated that failed."""
        self.retrying(error)
        await self.sleep(backoff(failures), until)

    async def sleep(self, seconds: float, until: float) -> None:
        """Raises ``Elapsed`` at a time of the loop."""
        left = until - self.loop.time()
        await asyncio.sleep(max(0.0, min(seconds, left)))
        if seconds >= left:
            raise Elapsed

    # Acquiring.

    async def acquire(self, request: Request, limit: Optional[float]) -> Optional[Hold]:
        """The lock, within so many seconds: 0 does not wait, ``None`` waits for good. ``None`` when
        it was busy for so long."""
        self.check_open()
        self._attempting += 1
        try:
            result = await _acquire.acquire(self, request, limit)
        except Elapsed:
            return None
        finally:
            self._attempting -= 1
        return None if isinstance(result, RetryAcquire) else result

    def holds(self, record: Record) -> Hold:
        """Keeps the lock from here on. The hold is made before the renewer knows of it, which gives
        back what nobody holds."""
        hold = Hold(self, record)
        self._renewer.enlist(record)
        return hold

    # What can be done with a lock that is held.

    async def release(self, record: Record) -> None:
        """Gives the lock back; raises ``LockLost`` if it was not held until now."""
        loss, claim = record.loss(), record.claim
        if loss is not None and self.is_foreign():
            raise loss.error()  # it is the parent's
        if record.leaving:
            return
        if loss is None and record.left_until() and not record.is_over():
            if await self._left(record):
                return
            loss = record.loss()
        until, closed_until = self.clock.now() + record.remaining(), record.closed_until()
        if record.close():
            self._renewer.delist(record)
            if loss is not None:
                # The lease may live longer at the backend: answers to renewals may have been lost.
                self.give_back(claim, record.uncertain, closed_until)
        elif loss is None:
            return
        self._give_back_broken(record)
        if loss is not None:
            raise loss.error()
        what, attempts, maybe_released = "", 0, False
        try:
            while not what:
                try:
                    what = await self._released(claim)
                except Unavailable as error:
                    attempts += 1
                    if attempts == 2:
                        raise
                    maybe_released = error.maybe_done
                    self.retrying(error)
        finally:
            if not what or record.uncertain:
                self.give_back(claim, record.uncertain)
        # An attempt whose answer was lost may have released it.
        if what != "claim" and not maybe_released:
            raise (await self._loss(claim, self.clock.now() < until)).error()

    async def _left(self, record: Record) -> bool:
        """Leaves a lock to a lease that ends with its least hold; ``False`` once that is over, where the
        backend cannot, so that it was held and renewed until then."""
        claim = record.claim
        if not record.uncertain:
            rest = max(0.1, record.left_until() - self.clock.now())
            record.leaving = True
            try:
                result = await self.ask("/v1/shorten", shortened(claim, rest), state)
            except Unsupported:
                record.leaving = False
                self._renewer.schedule(record)
            except BaseException:  # also a cancelled call
                if record.close():
                    self._renewer.delist(record)
                    self.give_back(claim, False, 0.0, record.least_end)
                raise
            else:
                if not isinstance(result, Ended):
                    if record.close():
                        self._renewer.delist(record)
                    return True
                record.leaving = False
                self.renewed(record, result, self.clock.now())
        while record.left_until() and record.loss() is None:
            await asyncio.sleep(min(1.0, max(0.001, record.least_end - self.clock.now())))
        return False

    async def _loss(self, claim: Claim, early: bool) -> Loss:
        """Why a claim was not there any more when it was released: the service knows of a break."""
        try:
            result = await self.ask("/v1/verify", {"claim": claim.json()}, state)
            if isinstance(result, Ended) and result.reason is not LossReason.VANISHED:
                return Loss(result.reason, result.broken)
        except Error:
            pass
        return Loss(LossReason.VANISHED if early else LossReason.EXPIRED)

    async def verify(self, record: Record) -> None:
        """Asks the backend whether the lock is held. It renews, too."""
        record.token()
        sent = self.clock.now()
        result = await self.ask("/v1/verify", {"claim": record.claim.json()}, state)
        self.renewed(record, result, sent)
        record.token()

    async def downgrade(self, record: Record) -> None:
        """Lets readers in beside the one that wrote. Where this ends otherwise, and they may be in
        already, the lock is given back: it says that it excludes them."""
        if record.claim.mode != "exclusive":
            raise Invalid("only a lock that is held for writing can be downgraded")
        failures, maybe_done = 0, False
        try:
            while True:
                record.token()
                sent, certain = self.clock.now(), not maybe_done
                limit = max(0.1, min(self.settings.timeout, record.remaining()))
                maybe_done = True  # also when this is cancelled
                try:
                    body = {"claim": record.claim.json()}
                    result = await self.ask("/v1/downgrade", body, state, limit)
                except Error as error:
                    maybe_done = error.maybe_done or not certain
                    if not isinstance(error, Unavailable):
                        raise
                    failures += 1
                    self.retrying(error)
                    await asyncio.sleep(min(backoff(failures), record.remaining()))
                    continue
                if isinstance(result, Held):
                    record.claim = replace(record.claim, mode="shared")
                self.renewed(record, result, sent)
                record.token()
                return
        except BaseException:
            if maybe_done:
                self.abandoned(record)
            raise

    def renewed(self, record: Record, result: State, sent: float) -> None:
        """Takes the answer to a renewal that was sent at ``sent``."""
        if record.is_over():
            return
        lease_end = record.lease_end()
        record.renewed(result, sent)
        if not record.is_over():
            self._renewer.schedule(record)
        elif record.is_done():
            self._renewer.delist(record)
            if record.uncertain or isinstance(result, Waiting):
                delayed = isinstance(result, Ended) and result.stays
                self.give_back(record.claim, record.uncertain, lease_end if delayed else 0.0)

    async def _released(self, claim: Claim) -> str:
        return await self.ask("/v1/release", {"claim": claim.json()}, found)

    # Giving back in the background.

    def abandon(self, record: Record) -> None:
        """Gives a lock back that nothing refers to. From any thread."""
        if self.is_foreign():
            return
        try:
            self.loop.call_soon_threadsafe(self.abandoned, record)
        except RuntimeError:
            pass  # The loop has ended: the lock ends with its lease.

    def abandoned(self, record: Record, loss: Optional[Loss] = None) -> None:
        """Gives a lock back that is not to be used any more. One that was lost stays lost."""
        closed_until, loss = record.closed_until(), record.loss() or loss
        if record.end(loss):
            self._renewer.delist(record)
            self.give_back(record.claim, record.uncertain, closed_until, record.left_until())
        self._give_back_broken(record)

    def _give_back_broken(self, record: Record) -> None:
        """Gives a lock back that was lost by a graceful break, once its holder is done with it."""
        if record.stays:
            record.stays = False
            self._renewer.delist(record)
            self.give_back(record.claim, record.uncertain)

    def expired(self, record: Record) -> None:
        """The deadline of a lock has passed. Its lease ends in full: whoever worked under it may
        not have noticed yet."""
        lease_end = record.lease_end()
        if record.expire():
            self.give_back(record.claim, record.uncertain, lease_end)

    def give_back(
        self, claim: Claim, uncertain: bool, not_before: float = 0.0, least_end: float = 0.0
    ) -> None:
        confirmed = asyncio.Event()
        task = self.loop.create_task(
            self._giving_back(claim, uncertain, not_before, least_end, confirmed)
        )
        self._releases[task] = confirmed
        task.add_done_callback(lambda it: self._releases.pop(it, None))

    async def _giving_back(
        self,
        claim: Claim,
        uncertain: bool,
        not_before: float,
        least_end: float,
        confirmed: asyncio.Event,
    ) -> None:
        """Releases a claim until the service says that it did, or until its lease is over anyway;
        when an acquire may still be under way, again and again until then. One that is to stay held
        is left to a lease that ends then, where the backend can do so."""
        attempts = 0
        while not uncertain and least_end > self.clock.now():
            try:
                rest = max(0.1, least_end - self.clock.now())
                await self.ask("/v1/shorten", shortened(claim, rest), state)
                confirmed.set()
                return
            except Unsupported:
                break
            except Error as error:
                self.retrying(error)
            attempts += 1
            await asyncio.sleep(backoff(attempts))
        not_before = max(not_before, least_end)
        while not_before > self.clock.now():
            await asyncio.sleep(min(1.0, not_before - self.clock.now()))
        give_up = self.clock.now() + max(claim.ttl, claim.wait_ttl)
        attempts = 0
        while True:
            try:
                await self._released(claim)
                confirmed.set()
                if not uncertain:
                    return
            # Also where it is refused: a certificate that is wrong for a second must not leave a lock
            # taken for its ttl.
            except Error as error:
                self.retrying(error)
            if self.clock.now() >= give_up:
                confirmed.set()
                return
            attempts += 1
            await asyncio.sleep(backoff(attempts))

    async def close(self, limit: float) -> None:
        """Ends what waits, gives back what is held, and waits until the service knows, for so many
        seconds at most."""
        if self._closed:
            return
        self._closed = True
        self._transport.interrupt()
        for record in self._renewer.stop():
            self.abandoned(record, Loss(LossReason.CLOSED))
        until = self.loop.time() + limit
        # What was cancelled orders its releases.
        while self._attempting and self.loop.time() < until:
            await asyncio.sleep(0.005)
        while self.loop.time() < until:
            pending = [it for it in self._releases.values() if not it.is_set()]
            if not pending:
                break
            waits = [asyncio.ensure_future(it.wait()) for it in pending]
            try:
                await asyncio.wait(waits, timeout=until - self.loop.time())
            finally:
                for wait in waits:
                    wait.cancel()
        releases = list(self._releases)
        for task in releases:
            task.cancel()
        await asyncio.gather(*releases, return_exceptions=True)
        self._transport.close()
        await asyncio.sleep(0)  # connections end in the next turn of the loop
