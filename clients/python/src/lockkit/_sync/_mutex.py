"""The mutex, in programs with threads."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Optional, Type

from .._blocks import EachBlock, OpenBlocks, begun, caller_of
from .._requests import Options
from .._settings import Seconds, in_seconds
from ._guard import Guard, taken, waited
from ._thread import EngineThread


class Mutex:
    """A lock that one client holds at a time, in the order of coming.

    ``with locks.mutex("invoice/42") as lock:`` waits for it, and releases it at the end of the
    block. All forms raise ``Invalid`` for a name that cannot be one.
    """

    def __init__(self, thread: EngineThread, options: Options) -> None:
        self._thread = thread
        self._options = options
        self._blocks: OpenBlocks[Guard] = OpenBlocks(threading.current_thread)

    def lock(self) -> Guard:
        """Waits for the lock. While the service is out of reach, this goes on trying. Raises
        ``LockLost`` if the waiting claim is broken."""
        return waited(self._thread, self._options.exclusive())

    def try_lock(self) -> Optional[Guard]:
        """The lock if it is free and no other claim waits for it; otherwise ``None``, at once. Raises
        ``Unavailable`` when there is no answer."""
        return taken(self._thread, self._options.exclusive(), 0)

    def try_lock_for(self, timeout: Seconds) -> Optional[Guard]:
        """Waits for the lock, but not longer than this; then ``None``."""
        limit = in_seconds("timeout", timeout)
        return taken(self._thread, self._options.exclusive(), limit)

    def __enter__(self) -> Guard:
        caller = caller_of(sys._getframe(1))
        # A handle may be used by several threads, and more than once by one: each has its block.
        block = begun(self, caller)
        guard = self.lock()
        if block is None:
            self._blocks.add(guard, caller)
        else:
            block.guard = guard
        return guard

    if TYPE_CHECKING:

        def __exit__(
            self,
            kind: Optional[Type[BaseException]],
            body: Optional[BaseException],
            trace: Optional[TracebackType],
        ) -> None: ...

    else:
        __exit__ = EachBlock(Guard.__exit__)
