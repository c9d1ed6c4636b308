"""Renews all locks of a connection object that are held, many in one request, and ends those that
could not be saved. One timer of the event loop, which is set for the next lock that needs anything:
how many others are held costs nothing when one is taken or released."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from typing import TYPE_CHECKING, List, Optional, Set, Tuple

from ._errors import Error, Invalid, LockLost, Refused
from ._record import Record
from ._wire import Ended, Json, renewals, state

if TYPE_CHECKING:
    from ._engine import Engine

MOST_CLAIMS = 1_000
"""Claims in one request."""
LONGEST_SLEEP = 1.0
"""Sleeps of an event loop may stop during suspend; deadlines do not. In seconds."""


class Renewer:
    """Keeps the records of an engine alive."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._records: Set[Record] = set()
        self._heap: List[Tuple[float, int, Record]] = []
        """When to look at a record. It may have changed since: an entry other than the one of
        ``record.scheduled`` is stale."""
        self._number = itertools.count()
        self._timer: Optional[asyncio.TimerHandle] = None
        self._renewals: Set["asyncio.Future[None]"] = set()

    def enlist(self, record: Record) -> None:
        """Takes care of a lock from here on."""
        self._records.add(record)
        self.schedule(record)

    def delist(self, record: Record) -> None:
        """Leaves a lock alone that has ended."""
        self._records.discard(record)
        if len(self._heap) > 3 * len(self._records):
            self._rebuild()

    def schedule(self, record: Record) -> None:
        """Looks at a record not later than something is to be done about it."""
        event = record.next_event()
        if record in self._records and event < record.scheduled:
            record.scheduled = event
            heapq.heappush(self._heap, (event, next(self._number), record))
            self._arm()

    def stop(self) -> List[Record]:
        """Renews no more; returns what is held."""
        records, self._records = list(self._records), set()
        self._rebuild()
        for renewal in self._renewals:
            renewal.cancel()
        return records

    def _rebuild(self) -> None:
        for record in self._records:
            record.scheduled = record.next_event()
        entries = ((record.scheduled, next(self._number), record) for record in self._records)
        self._heap = list(entries)
        heapq.heapify(self._heap)
        self._arm()

    def _arm(self) -> None:
        """Sets the timer, unless it comes early enough."""
        timer = self._timer
        if not self._heap:
            if timer is not None:
                timer.cancel()
            self._timer = None
            return
        pause = min(max(self._heap[0][0] - self._engine.clock.now(), 0.0), LONGEST_SLEEP)
        when = self._engine.loop.time() + pause
        if timer is None or when < timer.when():
            if timer is not None:
                timer.cancel()
            self._timer = self._engine.loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            self._look()
            self._arm()
        except BaseException:  # of a signal handler: nothing is left out because of it
            self._rebuild()
            raise

    def _look(self) -> None:
        now, due = self._engine.clock.now(), False
        again: List[Record] = []
        while self._heap and self._heap[0][0] <= now:
            at, _, record = heapq.heappop(self._heap)
            if record.scheduled != at or record not in self._records:
                continue
            record.scheduled = math.inf
            self._engine.expired(record)
            if record.is_done():
                self._records.discard(record)
                continue
            due = due or (record.due <= now and not record.asking)
            again.append(record)
        if due:
            batch = self._renewable(now)
            for begin in range(0, len(batch), MOST_CLAIMS):
                self._begin(batch[begin : begin + MOST_CLAIMS])
        for record in again:
            self.schedule(record)

    def _renewable(self, now: float) -> List[Record]:
        """What may as well be renewed when anything is. What nobody holds any more is given back
        instead."""
        batch: List[Record] = []
        for record in list(self._records):
            if record.renewable(now):
                hold = record.hold()
                if hold is None:
                    self._engine.abandoned(record)
                else:
                    batch.append(record)
        return batch

    def _begin(self, batch: List[Record]) -> None:
        for record in batch:
            record.asking = True
        renewal = asyncio.ensure_future(self._renew(batch))
        self._renewals.add(renewal)
        renewal.add_done_callback(self._renewals.discard)

    async def _renew(self, batch: List[Record]) -> None:
        try:
            await self._ask(batch)
        finally:
            for record in batch:
                record.asking = False
                self.schedule(record)

    async def _ask(self, batch: List[Record]) -> None:
        clock = self._engine.clock
        # A renewal of a lost claim would keep its name closed for longer than its lock delay.
        batch = [it for it in batch if not it.lock_delay or it.loss() is None]
        if not batch:
            return
        # What is over already sets no limit to the others.
        left = min((left for left in map(Record.remaining, batch) if left), default=math.inf)
        # Short enough for another try, long enough for a slow server.
        limit = min(left / 2, self._engine.settings.timeout)
        sent = clock.now()
        try:
            body = {"claims": [record.claim.json() for record in batch]}
            answers = await self._engine.ask("/v1/renew", body, renewals, limit)
            if len(answers) != len(batch):
                raise Refused("an answer of another version of the service")
        except Error as error:
            one = isinstance(error, Invalid) or getattr(error, "code", "") == "forbidden"
            if one and len(batch) > 1:
                # What is wrong with one claim costs that one only: look for it.
                half = len(batch) // 2
                await self._ask(batch[:half])
                await self._ask(batch[half:])
                return
            self._engine.retrying(error)
            for record in batch:
                record.renewal_failed(error)
            return
        for record, answer in zip(batch, answers):
            self._take(record, answer, sent)

    def _take(self, record: Record, answer: Json, sent: float) -> None:
        try:
            self._engine.renewed(record, state(answer), sent)
        except LockLost as error:
            self._engine.renewed(record, Ended(error.reason, error.broken), sent)
        except Error as error:
            record.renewal_failed(error)
        except (LookupError, TypeError, ValueError):
            record.renewal_failed(Refused("an answer of another version of the service"))
