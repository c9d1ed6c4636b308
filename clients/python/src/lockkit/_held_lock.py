"""What both guards have in common, and what tells of a loss."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Optional

from ._engine import LOG, Callback, Hold
from ._errors import LockLost, LossReason
from ._record import Loss, Record


class HeldLock:
    """A lock that was taken: its token, and whether it is still valid. Reading does no I/O."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold

    @property
    def _record(self) -> Record:
        return self._hold.record

    def _check_held(self) -> None:
        self._record.token()

    def _loss(self) -> Optional[Loss]:
        return self._record.loss()

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._record.claim.name

    @property
    def mode(self) -> str:
        """``exclusive``, ``shared`` or ``permits``."""
        return self._record.claim.mode

    @property
    def token(self) -> int:
        """The fencing token: give it along with every write that the lock protects.

        A later conflicting holder has a greater token. Raises ``LockLost`` once the lock is not
        valid, and ``LockReleased`` after its release.
        """
        return self._record.token()

    def is_valid(self) -> bool:
        """Whether the lock is held now, by this client's own clock. ``False`` before any other
        client can get the lock."""
        return self.remaining() > 0

    def remaining(self) -> float:
        """How long the lock is valid without another renewal, in seconds; 0 when it is not."""
        return self._record.remaining()

    def __repr__(self) -> str:
        state = "valid" if self.is_valid() else "not valid"
        return f"<{type(self).__name__} {self.name!r} {self.mode}, {state}>"


class Lost:
    """Tells that a lock was lost, in programs with threads.

    It is set by a background thread; ``is_set`` also looks at the clock itself, so it is right in
    a process that was suspended or stalled. A release does not set it. It does not keep the lock:
    a guard is released when nothing refers to it, also while its ``lost`` is in use.
    """

    POLL = 1.0

    def __init__(self, hold: Hold) -> None:
        self._record = hold.record
        self._hold = weakref.ref(hold)
        self._event = threading.Event()
        self._record.tell(self)

    def is_set(self) -> bool:
        """Whether the lock was lost."""
        return self._record.loss() is not None

    @property
    def reason(self) -> Optional[LossReason]:
        """Why; ``None`` when it was not lost."""
        loss = self._record.loss()
        return None if loss is None else loss.reason

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits for the loss, for so many seconds; whether the lock was lost. Returns ``False``
        early when the lock is released."""
        waited = 0.0
        while not self.is_set() and not self._record.is_over():
            left = self.POLL if timeout is None else timeout - waited
            if left <= 0:
                return False
            # The deadline is not left to the background thread, which may stall.
            pause = min(self.POLL, left, self._record.remaining() + 0.001)
            self._event.wait(pause)
            waited += pause
        return self.is_set()

    def call(self, callback: Callback) -> None:
        """Has ``callback(reason)`` called once when the lock is lost, in a thread of its own; at
        once when it was lost already. Never after a release."""
        if self.is_set():
            return self._start(callback)
        hold = self._hold()
        if hold is not None:
            hold.callbacks.append(callback)
            if self._record.is_over():
                self._start_all(hold)

    def ended(self) -> None:
        """The background thread tells."""
        self._event.set()
        hold = self._hold()
        if hold is not None:
            self._start_all(hold)

    def _start_all(self, hold: Hold) -> None:
        # No lock, which a signal handler or a fork could meet: each callback is taken out once.
        while hold.callbacks:
            try:
                callback = hold.callbacks.popleft()
            except IndexError:
                return
            self._start(callback)

    def _start(self, callback: Callback) -> None:
        loss = self._record.loss()
        if loss is not None:
            # One that blocks must not hold up the renewals of other locks.
            thread = threading.Thread(target=callback, args=(loss.reason,), daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # so from Python 3.12 on while a program ends
                LOG.warning("nothing is called for the loss of a lock: %s", error)


class AsyncLost:
    """Tells that a lock was lost, in programs of asyncio.

    It is set by a background task; ``is_set`` also looks at the clock itself, so it is right after
    the event loop was blocked or the process suspended. A release does not set it. It does not keep
    the lock: a guard is released when nothing refers to it, also while its ``lost`` is in use.
    """

    def __init__(self, hold: Hold) -> None:
        self._record = hold.record
        self._hold = weakref.ref(hold)
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._record.tell(self)

    def is_set(self) -> bool:
        """Whether the lock was lost."""
        return self._record.loss() is not None

    @property
    def reason(self) -> Optional[LossReason]:
        """Why; ``None`` when it was not lost."""
        loss = self._record.loss()
        return None if loss is None else loss.reason

    async def wait(self) -> Optional[LossReason]:
        """Waits for the loss, and says why; ``None`` when the lock is released instead."""
        if not self.is_set():
            await self._event.wait()
        return self.reason

    def call(self, callback: Callback) -> None:
        """Has ``callback(reason)`` called once when the lock is lost, by the event loop; soon when
        it was lost already. It must not block. Never after a release."""
        if self.is_set():
            return self._call(callback)
        hold = self._hold()
        if hold is not None:
            hold.callbacks.append(callback)

    def ended(self) -> None:
        """The engine tells."""
        self._event.set()
        hold = self._hold()
        while hold is not None and hold.callbacks:
            self._call(hold.callbacks.popleft())

    def _call(self, callback: Callback) -> None:
        loss = self._record.loss()
        if loss is not None:
            # The loop of the parent does not run in its child.
            foreign = self._record.is_foreign()
            loop = asyncio.get_running_loop() if foreign else self._loop
            loop.call_soon(callback, loss.reason)


def swallowed(error: BaseException, body: Optional[BaseException]) -> bool:
    """Whether an error of the release at the end of a ``with`` block is not raised: the block has
    failed by itself, or the work was done under the lock, which the background releases."""
    return body is not None or not isinstance(error, LockLost)
