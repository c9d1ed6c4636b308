"""Slots, for asyncio."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Awaitable, Callable, Optional, Type, TypeVar

from .. import _numbers
from .._errors import Error, LossReason
from .._held_lock import swallowed
from .._numbers import NumberedLock
from .._requests import Options
from .._settings import Seconds, in_seconds
from ._guard import Guard
from ._slot import EngineSlot

T = TypeVar("T")


class SlotGuard(NumberedLock):
    """A slot that is held, and renewed in the background. ``async with guard:`` releases it at the
    end. One that nothing refers to any more is released in the background."""

    def __init__(self, name: str, number: int, slot: Guard, permit: Guard) -> None:
        super().__init__(name, number, slot._record, permit._record)
        self._slot = slot
        self._permit = permit

    @property
    def lock(self) -> Guard:
        """The lock of this number: for registers, which check its token. Do not release it."""
        return self._slot

    async def wait_lost(self) -> Optional[LossReason]:
        """Waits for the loss, and says why; ``None`` when the slot is released instead."""
        waits = [asyncio.ensure_future(it.lost.wait()) for it in (self._slot, self._permit)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return self.loss

    async def release(self) -> None:
        """Gives back the slot and then its permit, and returns once the service knows. Raises
        ``LockLost`` when one of them was not held until now. Releasing again does nothing."""
        engine = self._slot._hold.engine
        await _numbers.release(engine, self._slot_record, self._permit_record)

    async def run(self, work: Callable[["SlotGuard"], Awaitable[T]]) -> T:
        """Runs ``work(guard)`` under this slot, and releases it. The work is cancelled when the slot
        is lost, and this raises ``LockLost``."""
        async with self:
            working = asyncio.ensure_future(work(self))
            losing = asyncio.ensure_future(self.wait_lost())
            try:
                await asyncio.wait({working, losing}, return_when=asyncio.FIRST_COMPLETED)
                loss = self._loss()
                if not working.done() and loss is not None:
                    raise loss.error()
                return await working
            finally:
                losing.cancel()
                # It must have ended before the slot is released.
                while not working.done():
                    working.cancel()
                    await asyncio.wait({working})

    async def __aenter__(self) -> "SlotGuard":
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        body: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            await self.release()
        except Error as error:
            if not swallowed(error, body):
                raise


class Slots:
    """So many numbers, each held by one client at a time, the lowest free one first. Clients that wait
    get theirs in the order of coming. Raises ``LimitMismatch`` while the name is in use with another
    number of slots, ``Unsupported`` on a quorum or a mirror."""

    def __init__(self, slot: EngineSlot, options: Options, slots: int) -> None:
        self._slot = slot
        self._options = _numbers.checked(options, slots)
        self._slots = slots

    async def acquire(self) -> SlotGuard:
        """Waits for a slot. While the service is out of reach, this goes on trying."""
        guard = await self._taken(None)
        if guard is None:
            raise AssertionError("a slot without a limit is waited for")
        return guard

    async def try_acquire(self) -> Optional[SlotGuard]:
        """A slot if one is free and no other claim waits; otherwise ``None``, at once."""
        return await self._taken(0)

    async def try_acquire_for(self, timeout: Seconds) -> Optional[SlotGuard]:
        """Waits for a slot, but not longer than this; then ``None``."""
        return await self._taken(in_seconds("timeout", timeout))

    async def run(self, work: Callable[[SlotGuard], Awaitable[T]]) -> T:
        """Waits for a slot, and runs ``work(guard)`` under it: the work is cancelled when the slot is
        lost, and this raises ``LockLost``."""
        return await (await self.acquire()).run(work)

    async def _taken(self, limit: Optional[Seconds]) -> Optional[SlotGuard]:
        engine = self._slot.engine()
        found = await _numbers.acquire(engine, self._options, self._slots, limit)
        if found is None:
            return None
        number, slot, permit = found
        return SlotGuard(self._options.name, number, Guard(slot), Guard(permit))
