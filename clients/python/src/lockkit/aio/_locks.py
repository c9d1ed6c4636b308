"""The locks of a service, for asyncio."""

from __future__ import annotations

from typing import List, Optional

from .. import _inspect, _once, _registers
from .._clock import Clock, system_clock
from .._requests import Maker
from .._settings import Seconds, in_seconds, settings
from .._wire import LockState
from ._group import Election, Once
from ._mutex import Mutex
from ._primitives import RwLock, Semaphore
from ._register import Register
from ._slot import EngineSlot
from ._slots import Slots


def connect(
    url: str,
    *,
    token: str = "",
    namespace: str = "",
    ttl: Seconds = 30,
    wait_ttl: Seconds = 10,
    lock_delay: Seconds = 0,
    clock: Optional[Clock] = None,
) -> Locks:
    """The locks of a lock service, for programs with asyncio. No I/O; the first request connects.

    ``url`` is ``http://HOST:PORT``, several servers of one service as
    ``http://HOST:PORT,HOST:PORT``, ``https://…``, or ``http+unix:/PATH``. Its options:
    ``timeout=5s`` is how long a request may take before another server is asked.
    ``token_file=FILE`` has the bearer token; so have ``token`` and the variable
    ``LOCKKIT_HTTP_TOKEN``. With ``https``, ``ca=FILE`` is the authority to trust instead of the
    system's, and ``cert=FILE&key=FILE`` are shown to a server that asks.

    ``namespace`` keeps the names of one application apart from another's. ``ttl`` is how long a lock
    stays held when its process dies; while it lives, a background task renews the lock after a
    third of it. ``wait_ttl`` is how long a waiter that died blocks those behind it. ``lock_delay``
    is how long a lock stays closed after it was lost, and not after a release. ``clock`` is for tests.

    Raises ``Invalid`` for what cannot work. A forked child may use the object as a new one: there,
    locks of the parent are not valid.
    """
    chosen = settings(url, token, namespace, ttl, wait_ttl, lock_delay)
    return Locks(EngineSlot(chosen, clock or system_clock()))


class Locks:
    """A connection to a lock service, in the event loop that uses it first.

    Close it, or use it in an ``async with`` statement, to give back what is still held. A program
    that ends without that costs the ttl."""

    def __init__(self, slot: EngineSlot) -> None:
        self._slot = slot
        self._make = Maker(slot.settings)

    def mutex(
        self,
        name: str,
        *,
        ttl: Optional[Seconds] = None,
        wait_ttl: Optional[Seconds] = None,
        note: Optional[str] = None,
        auto_renew: bool = True,
        max_hold: Optional[Seconds] = None,
        at_least: Optional[Seconds] = None,
        lock_delay: Optional[Seconds] = None,
    ) -> Mutex:
        """The lock of this name, held by one client at a time. No I/O.

        Options: ``ttl``, ``wait_ttl`` (as in ``connect``), ``note`` (a text for people that look at
        the lock), ``auto_renew`` (``False``: the lock ends with its first lease),
        ``max_hold`` (it is lost after this time, so that a holder that hangs does not keep it),
        ``at_least`` (it stays held for so long from when it is had, although it is released sooner:
        a process that dies leaves it taken for that time too), ``lock_delay`` (it stays closed for so
        long after it was lost, and not after a release).
        """
        options = self._make(
            name, ttl, wait_ttl, note, auto_renew, max_hold, at_least, lock_delay
        )
        return Mutex(self._slot, options)

    def rwlock(
        self,
        name: str,
        *,
        ttl: Optional[Seconds] = None,
        wait_ttl: Optional[Seconds] = None,
        note: Optional[str] = None,
        auto_renew: bool = True,
        max_hold: Optional[Seconds] = None,
        at_least: Optional[Seconds] = None,
        lock_delay: Optional[Seconds] = None,
    ) -> RwLock:
        """The lock of this name for many readers or one writer. It is the lock that ``mutex`` has
        under the same name. Options as there. No I/O."""
        options = self._make(
            name, ttl, wait_ttl, note, auto_renew, max_hold, at_least, lock_delay
        )
        return RwLock(self._slot, options)

    def semaphore(
        self,
        name: str,
        limit: int,
        *,
        ttl: Optional[Seconds] = None,
        wait_ttl: Optional[Seconds] = None,
        note: Optional[str] = None,
        auto_renew: bool = True,
        max_hold: Optional[Seconds] = None,
        at_least: Optional[Seconds] = None,
        lock_delay: Optional[Seconds] = None,
    ) -> Semaphore:
        """A semaphore of ``limit`` permits; the limit is the same for all who use it. Options as
        in ``mutex``. No I/O."""
        options = self._make(
            name, ttl, wait_ttl, note, auto_renew, max_hold, at_least, lock_delay
        )
        return Semaphore(self._slot, options, limit)

    def slots(
        self,
        name: str,
        slots: int,
        *,
        ttl: Optional[Seconds] = None,
        wait_ttl: Optional[Seconds] = None,
        note: Optional[str] = None,
        max_hold: Optional[Seconds] = None,
        at_least: Optional[Seconds] = None,
        lock_delay: Optional[Seconds] = None,
    ) -> Slots:
        """So many numbers, 0 and up, each held by one client at a time: worker ids, devices, ports.
        How many there are is the same for all who use the name, which has 480 bytes at most. Options
        as in ``mutex``. No I/O."""
        options = self._make(name, ttl, wait_ttl, note, True, max_hold, at_least, lock_delay)
        return Slots(self._slot, options, slots)

    def election(
        self,
        name: str,
        value: Optional[str] = None,
        *,
        ttl: Optional[Seconds] = None,
        wait_ttl: Optional[Seconds] = None,
        auto_renew: bool = True,
        max_hold: Optional[Seconds] = None,
        at_least: Optional[Seconds] = None,
        lock_delay: Optional[Seconds] = None,
    ) -> Election:
        """Elects one leader. ``value`` is what the others are to know of this candidate, such as
        its address: at most 1,000 bytes in one line. Options as in ``mutex``, without ``note``. No
        I/O."""
        options = self._make(
            name, ttl, wait_ttl, value, auto_renew, max_hold, at_least, lock_delay
        )
        return Election(self._slot, options)

    def once(
        self,
        key: str,
        keep: Seconds = _once.KEEP,
        *,
        ttl: Optional[Seconds] = None,
        wait_ttl: Optional[Seconds] = None,
        note: Optional[str] = None,
        auto_renew: bool = True,
        max_hold: Optional[Seconds] = None,
        at_least: Optional[Seconds] = None,
        lock_delay: Optional[Seconds] = None,
    ) -> Once:
        """A job that many start and one does. The key says which run it is, so it has the date in
        it: ``2026-11-21/report``. What was decided is kept for ``keep``: 7 days unless set. Options
        as in ``mutex``. No I/O."""
        return Once(
            self._slot,
            self._make(key, ttl, wait_ttl, note, auto_renew, max_hold, at_least, lock_delay),
            in_seconds("keep", keep),
        )

    def register(self, name: str) -> Register:
        """The register of this name: a value of at most 64 KiB beside the locks. No I/O."""
        return Register(self._slot, _registers.checked(name))

    async def inspect(self, name: str, space: str = "lock") -> LockState:
        """Who holds a lock (or ``space="semaphore"``) and who waits for it."""
        return await self._slot.run(lambda it: _inspect.inspect(it, name, space))

    async def list(self, names: str = "") -> List[LockState]:
        """The locks and semaphores in use whose names begin with ``names``."""
        return await self._slot.run(lambda it: _inspect.list_locks(it, names))

    async def break_lock(
        self,
        name: str,
        token: int,
        *,
        space: str = "lock",
        force: bool = False,
        reason: Optional[str] = None,
    ) -> bool:
        """Breaks the claim that has this token; whether there was one. Its holder is told at its
        next renewal, and the lock moves on when the holder lets go or its lease ends. With
        ``force`` it moves on at once: from there on only tokens protect."""
        return await self._slot.run(
            lambda it: _inspect.break_lock(it, name, space, token, force, reason)
        )

    async def close(self, timeout: Seconds = 5) -> None:
        """Gives back what is held, and ends the background tasks. Locks that are held are lost
        (``LossReason.CLOSED``); calls that wait raise ``Closed``. Waits for the service for
        ``timeout`` at most."""
        await self._slot.close(in_seconds("timeout", timeout))

    async def __aenter__(self) -> Locks:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
