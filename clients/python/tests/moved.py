"""A clock for tests."""

from __future__ import annotations

from lockkit._clock import system_clock


class MovedClock:
    """The clock of the system, which a test moves ahead."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._clock = system_clock()

    def now(self) -> float:
        return self._clock.now() + self.ahead
