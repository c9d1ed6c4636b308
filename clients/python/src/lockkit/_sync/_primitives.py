# Written by generate.py, from aio/_primitives.py.
"""Read-write lock and semaphore, in programs with threads."""

from __future__ import annotations

from typing import Optional

from .. import _inspect
from .._requests import Options
from .._settings import Seconds, in_seconds
from ._guard import Guard, taken, waited
from ._thread import EngineThread


class RwLock:
    """A lock for many readers or one writer, in the order of coming: a writer that waits is not
    overtaken by readers. The methods are those of ``Mutex``, for either side:
    ``with locks.rwlock("config").read() as lock:``."""

    def __init__(self, thread: EngineThread, options: Options) -> None:
        self._thread = thread
        self._options = options

    def read(self) -> Guard:
        """Waits for the lock, to share it with other readers."""
        return waited(self._thread, self._options.shared())

    def try_read(self) -> Optional[Guard]:
        """For reading, as ``Mutex.try_lock``."""
        return taken(self._thread, self._options.shared(), 0)

    def try_read_for(self, timeout: Seconds) -> Optional[Guard]:
        """For reading, as ``Mutex.try_lock_for``."""
        return taken(self._thread, self._options.shared(), in_seconds("timeout", timeout))

    def write(self) -> Guard:
        """Waits for the lock, to hold it alone."""
        return waited(self._thread, self._options.exclusive())

    def try_write(self) -> Optional[Guard]:
        """For writing, as ``Mutex.try_lock``."""
        return taken(self._thread, self._options.exclusive(), 0)

    def try_write_for(self, timeout: Seconds) -> Optional[Guard]:
        """For writing, as ``Mutex.try_lock_for``."""
        return taken(self._thread, self._options.exclusive(), in_seconds("timeout", timeout))


class Semaphore:
    """So many permits, in the order of coming. Raises ``LimitMismatch`` while it is in use with
    another limit. Tokens of permits do not fence: an older holder is legitimate."""

    def __init__(self, thread: EngineThread, options: Options, limit: int) -> None:
        self._thread = thread
        self._options = options
        self._limit = limit

    def acquire(self, permits: int = 1) -> Guard:
        """Waits for so many permits."""
        return waited(self._thread, self._options.permits(permits, self._limit))

    def try_acquire(self, permits: int = 1) -> Optional[Guard]:
        """So many permits if there are so many and no other claim waits; otherwise ``None``, at once."""
        return taken(self._thread, self._options.permits(permits, self._limit), 0)

    def try_acquire_for(self, timeout: Seconds, permits: int = 1) -> Optional[Guard]:
        """Waits for so many permits, but not longer than this; then ``None``."""
        limit = in_seconds("timeout", timeout)
        return taken(self._thread, self._options.permits(permits, self._limit), limit)

    def available_permits(self) -> int:
        """How many permits are not out."""
        name, limit = self._options.name, self._limit
        return self._thread.run(lambda it: _inspect.available(it, name, limit))
