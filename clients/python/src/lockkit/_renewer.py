"""The one background task of a connection object: it renews all locks that are held, many in one
request, and ends those that could not be saved. It runs while there are any."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, List, Optional, Set

from ._errors import Error, Invalid, Unavailable
from ._record import Record
from ._wire import state

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
        self._task: Optional["asyncio.Future[None]"] = None
        self._renewals: Set["asyncio.Future[None]"] = set()
        self._woken: Optional[asyncio.Event] = None

    def enlist(self, record: Record) -> None:
        """Takes care of a lock from here on."""
        self._records.add(record)
        self.wake()
        if self._task is None or self._task.done():
            self._woken = asyncio.Event()
            self._task = asyncio.ensure_future(self._run(self._woken))

    def delist(self, record: Record) -> None:
        """Leaves a lock alone that has ended."""
        self._records.discard(record)
        self.wake()

    def wake(self) -> None:
        """Looks again what is next."""
        if self._woken is not None:
            self._woken.set()

    def stop(self) -> List[Record]:
        """Renews no more; returns what is held."""
        if self._task is not None:
            self._task.cancel()
        for renewal in self._renewals:
            renewal.cancel()
        records, self._records = list(self._records), set()
        return records

    async def _run(self, woken: asyncio.Event) -> None:
        clock = self._engine.clock
        while self._records:
            woken.clear()
            now = clock.now()
            for record in list(self._records):
                self._engine.expired(record)
                if record.is_over():
                    self._records.discard(record)
            if any(record.due <= now and not record.asking for record in self._records):
                batch = [record for record in self._records if record.renewable(now)]
                for begin in range(0, len(batch), MOST_CLAIMS):
                    self._begin(batch[begin : begin + MOST_CLAIMS])
            if not self._records:
                return
            event = min(record.next_event() for record in self._records)
            pause = min(max(event - clock.now(), 0.0), LONGEST_SLEEP)
            waiting = asyncio.ensure_future(woken.wait())
            try:
                await asyncio.wait({waiting}, timeout=pause)
            finally:
                waiting.cancel()

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
            self.wake()

    async def _ask(self, batch: List[Record]) -> None:
        clock = self._engine.clock
        # What is over already sets no limit to the others.
        left = min((left for left in map(Record.remaining, batch) if left), default=0.0)
        # Short enough for another try, long enough for a slow server.
        limit = max(0.1, min(left / 2, self._engine.settings.timeout))
        sent = clock.now()
        try:
            body = {"claims": [record.claim.json() for record in batch]}
            answers = (await self._engine.ask("/v1/renew", body, limit))["answers"]
        except Unavailable:
            answers = None
        except (Error, KeyError) as error:
            one = isinstance(error, Invalid) or getattr(error, "code", "") == "forbidden"
            if one and len(batch) > 1:
                # What is wrong with one claim costs that one only: look for it.
                half = len(batch) // 2
                await self._ask(batch[:half])
                await self._ask(batch[half:])
                return
            answers = None
        if answers is None or len(answers) != len(batch):
            for record in batch:
                record.renewal_failed()
            return
        for record, answer in zip(batch, answers):
            try:
                self._engine.renewed(record, state(answer), sent)
            except Error:
                record.renewal_failed()
