"""The clock of deadlines. It goes on while the system is suspended: a lease does, too.

``time.monotonic()`` stops during suspend on Linux, so a program that wakes up would trust a lock
that was handed on meanwhile.
"""

from __future__ import annotations

import threading
import time
from typing import Callable, Protocol

from . import _forks


class Clock(Protocol):
    """What deadlines are read on."""

    def now(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""


class BootClock:
    """``CLOCK_BOOTTIME`` of Linux: monotonic, and goes on during suspend."""

    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class AgreeingClock:
    """For systems without a clock that is known to go on during suspend.

    While wall clock and monotonic clock advance alike, this is the monotonic clock. When they
    disagree, the system was suspended or the wall clock was set, and it cannot be told which. This
    clock then jumps so far ahead that everything that was trusted before has ended.
    """

    JUMP = 1e9
    TOLERANCE = 0.05

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._monotonic = monotonic
        self._wall = wall
        # Reentrant: a signal handler may read the clock as well.
        self._lock = threading.RLock()
        self._seen = (*self._read(), 0.0)
        _forks.tell(self)

    def forked(self) -> None:
        # Another thread of the parent may have held it.
        self._lock = threading.RLock()

    def now(self) -> float:
        with self._lock:
            return self._look()

    def _look(self) -> float:
        monotonic, wall = self._read()
        seen_monotonic, seen_wall, skipped = self._seen
        elapsed = monotonic - seen_monotonic
        # A wall clock that is slewed runs up to 500 ppm faster or slower, which is no jump.
        allowed = self.TOLERANCE + 0.001 * elapsed
        if elapsed >= 0 and abs((wall - seen_wall) - elapsed) > allowed:
            skipped += self.JUMP
        self._seen = (monotonic, wall, skipped)
        return monotonic + skipped

    def _read(self) -> "tuple[float, float]":
        """Both clocks at one moment: a thread that was interrupted in between reads again."""
        for _ in range(10):
            before = self._monotonic()
            wall = self._wall()
            if self._monotonic() - before < 0.005:
                break
        return before, wall


def system_clock() -> Clock:
    """The clock of this system."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return BootClock()
    return AgreeingClock()
