"""The clock of deadlines. It goes on while the system is suspended: a lease does, too.

``time.monotonic()`` stops during suspend on Linux, so a program that wakes up would trust a lock
that was handed on meanwhile.
"""

# What a loop that always runs assigns:
# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

import time
from typing import Callable, Protocol


class Clock(Protocol):
    """What deadlines are read on."""

    def now(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""
        ...


class _Sum:
    """A clock that counts, of each interval between two anchors, what one of two clocks counted.

    Never the greater of two readings: clocks drift apart, and a suspend that is shorter than their
    distance would vanish.
    """

    _ANCHOR_DISTANCE: float

    def __init__(self, first: Callable[[], float], second: Callable[[], float]) -> None:
        self._first = first
        self._second = second
        self._anchor = (*self._read(), 0.0)

    def now(self) -> float:
        # No lock, which an exception of a signal handler would leave taken, or a fork. Threads that
        # set an anchor at the same time count from the same one: either of theirs is right.
        anchor = self._anchor
        first, second, counted = anchor
        passed = self._passed(self._first() - first, self._second() - second)
        if passed >= self._ANCHOR_DISTANCE:
            now = self._read()
            passed = self._passed(now[0] - first, now[1] - second)
            if self._anchor is anchor:
                self._anchor = (*now, counted + passed)
        return counted + passed

    def _passed(self, first: float, second: float) -> float:
        return max(first, second, 0.0)

    def _read(self) -> "tuple[float, float]":
        """Both clocks at one moment: a thread that was interrupted in between reads again."""
        for _ in range(10):
            before = self._first()
            second = self._second()
            if self._first() - before < 0.001:
                break
        return before, second


class SteadyClock(_Sum):
    """Counts suspends, and is not slewed: what the faster of ``CLOCK_BOOTTIME``, which daemons that
    set the time slow down (chrony by up to 8.33 %), and ``CLOCK_MONOTONIC_RAW``, which stops during
    suspend, counted."""

    _ANCHOR_DISTANCE = 0.1

    def __init__(
        self,
        boot: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        raw: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_MONOTONIC_RAW),
    ) -> None:
        super().__init__(boot, raw)


class AgreeingClock(_Sum):
    """For systems without a clock that is known to go on during suspend.

    While wall clock and monotonic clock advance alike, this is the faster of the two. When they
    disagree, the system was suspended or the wall clock was set, and it cannot be told which. This
    clock then jumps so far ahead that everything that was trusted before has ended.
    """

    JUMP = 1e9
    TOLERANCE = 0.05
    SLEWED = 0.1
    """Daemons that set the time make a clock faster or slower by less than this part."""

    # Where the wall clock counts in steps of 16 ms, more anchors would make this clock too fast.
    _ANCHOR_DISTANCE = 1.0

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(monotonic, wall)

    def _passed(self, first: float, second: float) -> float:
        allowed = self.TOLERANCE + self.SLEWED * max(first, second)
        jump = self.JUMP if abs(second - first) > allowed else 0.0
        return super()._passed(first, second) + jump


def system_clock() -> Clock:
    """The clock of this system."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return SteadyClock()
    return AgreeingClock()
