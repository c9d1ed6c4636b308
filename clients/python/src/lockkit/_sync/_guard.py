"""A lock that is held, in programs with threads, and how it is taken."""

from __future__ import annotations

from types import TracebackType
from typing import Optional, Type, TypeVar

from .._acquire import Request
from .._engine import Callback, Engine, Hold
from .._errors import Error
from .._held_lock import HeldLock, Lost, swallowed
from ._thread import EngineThread


R = TypeVar("R", bound="Releasing")


class Releasing:
    """What the end of a block releases: a lock, or a slot."""

    def release(self) -> None:
        """Gives it back, and returns once the service knows."""
        raise NotImplementedError

    def _check_held(self) -> None:
        """Raises ``LockLost`` or ``LockReleased`` where nothing may be done under it."""
        raise NotImplementedError

    def __enter__(self: R) -> R:
        self._check_held()
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        body: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            self.release()
        except Error as error:
            if not swallowed(error, body):
                raise


class Guard(HeldLock, Releasing):
    """A lock that is held, and renewed in the background.

    In a ``with`` statement, leaving the block releases the lock, and raises ``LockLost`` if it was
    not held until then. A guard that nothing refers to any more is released in the background.
    """

    def __init__(self, thread: EngineThread, hold: Hold) -> None:
        super().__init__(hold)
        self._thread = thread
        self.lost = Lost(hold)
        """Tells of the loss: ``lost.wait(timeout)``, ``lost.is_set()``, ``lost.call(callback)``."""

    def on_lost(self, callback: Callback) -> None:
        """Has ``callback(reason)`` called once when the lock is lost, in a thread of its own."""
        self.lost.call(callback)

    def release(self) -> None:
        """Gives the lock back, and returns once the service knows. Releasing again does nothing.

        Raises ``LockLost`` when the lock was not held until now: what was done under it may have
        met another client's work. After ``Unavailable`` the background goes on releasing until the
        lease is over.
        """
        record = self._record
        if record.is_done() or record.is_foreign():
            loss = record.loss()
            if loss is not None:
                raise loss.error()
            return
        self._thread.run(lambda it: it.release(record))

    def verify(self) -> None:
        """Asks the backend whether the lock is held, and renews it. Raises ``LockLost`` or
        ``Unavailable``."""
        record = self._record
        record.token()  # in a fork, before an engine of its own is asked
        self._thread.run(lambda it: it.verify(record))

    def downgrade(self) -> None:
        """Of a lock held for writing: keeps it for reading, and lets other readers in. The token
        stays. Raises ``Invalid`` for other locks, ``LockLost`` when it is not held. After another
        error, and when this is interrupted, the lock is given back, unless it is certain that nothing
        was done."""
        record = self._record
        record.token()
        self._thread.run(lambda it: it.downgrade(record))


def taken(thread: EngineThread, request: Request, limit: Optional[float]) -> Optional[Guard]:
    """The lock, within so many seconds: 0 does not wait, ``None`` waits for good."""

    async def acquire(engine: Engine) -> Optional[Guard]:
        hold = await engine.acquire(request, limit)
        return None if hold is None else Guard(thread, hold)

    return thread.run(acquire)


def waited(thread: EngineThread, request: Request) -> Guard:
    """The lock, however long it takes."""
    guard = taken(thread, request, None)
    if guard is None:
        raise AssertionError("a lock without a limit is waited for")
    return guard
