"""Slots, for asyncio."""

from __future__ import annotations

import asyncio
from typing import Awaitable, Callable, Optional, TypeVar

from .. import _numbers
from .._errors import LossReason
from .._numbers import NumberedLock
from .._requests import Options
from .._settings import Seconds, in_seconds
from ._guard import Guard, Releasing
from ._slot import EngineSlot

T = TypeVar("T")


class SlotGuard(NumberedLock, Releasing):
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
        await self._ended()
        return self.loss

    async def _ended(self) -> None:
        waits = [asyncio.ensure_future(it.lost.wait()) for it in (self._slot, self._permit)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def release(self) -> None:
        """Gives back the slot and then its permit, and returns once the service knows. Raises
        ``LockLost`` when one of them was not held until now. Releasing again does nothing."""
        engine = self._slot._hold.engine
        await _numbers.release(engine, self._slot_record, self._permit_record)


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

    async def _taken(self, limit: Optional[float]) -> Optional[SlotGuard]:
        engine = self._slot.engine()
        found = await _numbers.acquire(engine, self._options, self._slots, limit)
        if found is None:
            return None
        number, slot, permit = found
        return SlotGuard(self._options.name, number, Guard(slot), Guard(permit))
