"""Slots, in programs with threads."""

from __future__ import annotations

from typing import Optional

from .. import _numbers
from .._engine import Engine
from .._numbers import NumberedLock
from .._requests import Options
from .._settings import Seconds, in_seconds
from ._guard import Guard, Releasing
from ._thread import EngineThread


class SlotGuard(NumberedLock, Releasing):
    """A slot that is held, and renewed in the background. ``with guard:`` releases it at the end. One
    that nothing refers to any more is released in the background."""

    def __init__(
        self, thread: EngineThread, name: str, number: int, slot: Guard, permit: Guard
    ) -> None:
        super().__init__(name, number, slot._record, permit._record)
        self._thread = thread
        self._slot = slot
        self._permit = permit

    @property
    def lock(self) -> Guard:
        """The lock of this number: for registers, which check its token. Do not release it."""
        return self._slot

    def release(self) -> None:
        """Gives back the slot and then its permit, and returns once the service knows. Raises
        ``LockLost`` when one of them was not held until now. Releasing again does nothing."""
        slot, permit = self._slot_record, self._permit_record
        if (slot.is_done() and permit.is_done()) or slot.is_foreign():
            loss = self._loss()
            if loss is not None:
                raise loss.error()
            return
        self._thread.run(lambda it: _numbers.release(it, slot, permit))


class Slots:
    """So many numbers, each held by one client at a time, the lowest free one first. Clients that wait
    get theirs in the order of coming. Raises ``LimitMismatch`` while the name is in use with another
    number of slots, ``Unsupported`` on a quorum or a mirror."""

    def __init__(self, thread: EngineThread, options: Options, slots: int) -> None:
        self._thread = thread
        self._options = _numbers.checked(options, slots)
        self._slots = slots

    def acquire(self) -> SlotGuard:
        """Waits for a slot. While the service is out of reach, this goes on trying."""
        guard = self._taken(None)
        if guard is None:
            raise AssertionError("a slot without a limit is waited for")
        return guard

    def try_acquire(self) -> Optional[SlotGuard]:
        """A slot if one is free and no other claim waits; otherwise ``None``, at once."""
        return self._taken(0)

    def try_acquire_for(self, timeout: Seconds) -> Optional[SlotGuard]:
        """Waits for a slot, but not longer than this; then ``None``."""
        return self._taken(in_seconds("timeout", timeout))

    def _taken(self, limit: Optional[float]) -> Optional[SlotGuard]:
        thread, options, slots = self._thread, self._options, self._slots

        async def acquire(engine: Engine) -> Optional[SlotGuard]:
            found = await _numbers.acquire(engine, options, slots, limit)
            if found is None:
                return None
            number, slot, permit = found
            return SlotGuard(
                thread, options.name, number, Guard(thread, slot), Guard(thread, permit)
            )

        return thread.run(acquire)
