"""Read-write lock and semaphore, for asyncio."""

from __future__ import annotations

from typing import Optional

from .. import _inspect
from .._requests import Options
from .._settings import Seconds, in_seconds
from ._guard import Acquiring, Guard, taken, waited
from ._slot import EngineSlot


class RwLock:
    """A lock for many readers or one writer, in the order of coming: a writer that waits is not
    overtaken by readers. The methods are those of ``Mutex``, for either side:
    ``async with locks.rwlock("config").read() as lock:``."""

    def __init__(self, slot: EngineSlot, options: Options) -> None:
        self._slot = slot
        self._options = options

    def read(self) -> Acquiring:
        """Waits for the lock, to share it with other readers."""
        return waited(self._slot, self._options.shared())

    async def try_read(self) -> Optional[Guard]:
        """For reading, as ``Mutex.try_lock``."""
        return await taken(self._slot, self._options.shared(), 0)

    async def try_read_for(self, timeout: Seconds) -> Optional[Guard]:
        """For reading, as ``Mutex.try_lock_for``."""
        return await taken(self._slot, self._options.shared(), in_seconds("timeout", timeout))

    def write(self) -> Acquiring:
        """Waits for the lock, to hold it alone."""
        return waited(self._slot, self._options.exclusive())

    async def try_write(self) -> Optional[Guard]:
        """For writing, as ``Mutex.try_lock``."""
        return await taken(self._slot, self._options.exclusive(), 0)

    async def try_write_for(self, timeout: Seconds) -> Optional[Guard]:
        """For writing, as ``Mutex.try_lock_for``."""
        return await taken(self._slot, self._options.exclusive(), in_seconds("timeout", timeout))


class Semaphore:
    """So many permits, in the order of coming. Raises ``LimitMismatch`` while it is in use with
    another limit. Tokens of permits do not fence: an older holder is legitimate."""

    def __init__(self, slot: EngineSlot, options: Options, limit: int) -> None:
        self._slot = slot
        self._options = options
        self._limit = limit

    def acquire(self, permits: int = 1) -> Acquiring:
        """Waits for so many permits."""
        return waited(self._slot, self._options.permits(permits, self._limit))

    async def try_acquire(self, permits: int = 1) -> Optional[Guard]:
        """So many permits if there are so many and no other claim waits; otherwise ``None``, at once."""
        return await taken(self._slot, self._options.permits(permits, self._limit), 0)

    async def try_acquire_for(self, timeout: Seconds, permits: int = 1) -> Optional[Guard]:
        """Waits for so many permits, but not longer than this; then ``None``."""
        limit = in_seconds("timeout", timeout)
        return await taken(self._slot, self._options.permits(permits, self._limit), limit)

    async def available_permits(self) -> int:
        """How many permits are not out."""
        name, limit = self._options.name, self._limit
        return await self._slot.run(lambda it: _inspect.available(it, name, limit))
