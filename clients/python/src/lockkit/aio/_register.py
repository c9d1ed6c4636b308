"""The register, for asyncio."""

from __future__ import annotations

from typing import Optional, Union

from .. import _registers
from .._held_lock import HeldLock
from .._registers import ANY, Precondition
from .._settings import Seconds, in_seconds
from .._wire import Entry
from ._slot import EngineSlot


class Register:
    """A named value with a version and a fence.

    - ``put(value, lock=lock)`` is refused (``Stale``) once a later holder of the lock has written.
      Use the guards of one lock for one register.
    - ``put(value, expect=entry)`` is refused (``Conflict``) unless what was read is still there.

    A lost answer is asked for again, for half a minute at most and no longer than the lock is
    valid. ``Unavailable`` after that leaves open whether it was done.
    """

    def __init__(self, slot: EngineSlot, name: str) -> None:
        self._slot = slot
        self._name = name

    async def get(self) -> Optional[Entry]:
        """The value with its version and its fence; ``None`` when there is none."""
        name = self._name
        return await self._slot.run(lambda it: _registers.load(it, name))

    async def put(
        self,
        value: Union[bytes, str],
        *,
        expect: Precondition = ANY,
        lock: Optional[HeldLock] = None,
        token: Optional[int] = None,
        ttl: Optional[Seconds] = None,
    ) -> int:
        """Stores a value, and returns its version. ``expect``: ``ANY``, ``None`` for no value, a
        version, or the entry that was read. ``lock`` fences with a lock that is held alone;
        ``token`` with the token of a lock elsewhere. ``ttl``: how long the value stays."""
        stays = None if ttl is None else in_seconds("ttl", ttl)
        return await self._write(_registers.as_bytes(value), expect, lock, token, stays)

    async def delete(
        self,
        *,
        expect: Precondition = ANY,
        lock: Optional[HeldLock] = None,
        token: Optional[int] = None,
    ) -> None:
        """Deletes the value; that there is none is fine. The fence stays, and versions go on."""
        await self._write(None, expect, lock, token, None)

    async def changed(self, after: Optional[Entry]) -> Optional[Entry]:
        """Waits until what is there is not ``after``, and returns it. ``None`` means no
        value."""
        name, version = self._name, None if after is None else after.version
        return await self._slot.run(lambda it: _registers.changed(it, name, version))

    async def _write(
        self,
        value: Optional[bytes],
        expect: Precondition,
        lock: Optional[HeldLock],
        token: Optional[int],
        ttl: Optional[float],
    ) -> int:
        name, record = self._name, None if lock is None else lock._record
        if record is not None:
            record.token()  # in a fork, before an engine of its own is asked
        return await self._slot.run(
            lambda it: _registers.write(it, name, value, expect, record, token, ttl)
        )
