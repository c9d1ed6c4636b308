# Written by generate.py, from aio/_group.py.
"""Election and once, in programs with threads: built from locks and registers."""

from __future__ import annotations

from typing import Callable, Iterator, Optional, Union

from .. import _inspect, _once, _registers
from .._errors import Error
from .._once import Decision
from .._registers import ANY
from .._requests import Options
from .._settings import Seconds, in_seconds
from .._wire import ClaimState
from ._guard import Guard, taken, waited
from ._thread import EngineThread


Work = Callable[[Guard], Union[bytes, str]]
"""A job: it is given the guard of its lock, and returns what is decided."""


class Election:
    """One leader at a time, elected in the order of coming, and known to all by its value.

    It is the lock of the same name: leading is holding it, and the guard's token grows from leader
    to leader. ``with election.campaign() as lead:`` leads until the end of the block.
    """

    def __init__(self, thread: EngineThread, options: Options) -> None:
        self._thread = thread
        self._options = options

    def campaign(self) -> Guard:
        """Waits until this candidate leads. Releasing the guard resigns."""
        return waited(self._thread, self._options.exclusive())

    def try_campaign(self) -> Optional[Guard]:
        """Leads if there is no other candidate; otherwise ``None``, at once."""
        return taken(self._thread, self._options.exclusive(), 0)

    def campaign_for(self, timeout: Seconds) -> Optional[Guard]:
        """Campaigns, but not longer than this; then ``None``."""
        return taken(self._thread, self._options.exclusive(), in_seconds("timeout", timeout))

    def leader(self) -> Optional[ClaimState]:
        """Who leads now: ``note`` is its value."""
        name = self._options.name
        state = self._thread.run(lambda it: _inspect.inspect(it, name, "lock"))
        return _inspect.leader(state)

    def observe(self) -> Iterator[ClaimState]:
        """The leader of now, if there is one, and then each that follows. One that led for a short
        time only may be left out. Waits for good for the next one."""
        name, last = self._options.name, 0
        state = self._thread.run(lambda it: _inspect.inspect(it, name, "lock"))
        while True:
            leader = _inspect.leader(state)
            if leader is not None and leader.token > last:
                last = leader.token
                yield leader
            before = state
            state = self._thread.run(lambda it: _inspect.changed(it, before))


class Once:
    """A job that many start and one does, under the lock of the same name.

    What the work returns is kept as the decision for its key, and given to all who come later. When
    the work fails or its process dies, nothing is decided and the next waiter begins: a job that
    died between its work and its decision is done again.
    """

    def __init__(self, thread: EngineThread, options: Options, keep: float) -> None:
        self._thread = thread
        self._options = options
        self._keep = keep

    def run(self, work: Work) -> Decision:
        """Runs ``work(lock)`` unless it was done; while another client runs it, waits for what
        becomes of that. What was decided, by any client. Raises ``LockLost`` when the lock was lost
        during the work: then nothing was decided here."""
        decided = self.decision()
        if decided is not None:
            return decided
        return self._under(waited(self._thread, self._options.exclusive()), work)

    def try_run(self, work: Work) -> Optional[Decision]:
        """As ``run``, but ``None`` when another client runs it now."""
        decided = self.decision()
        if decided is not None:
            return decided
        guard = taken(self._thread, self._options.exclusive(), 0)
        # A client that ran it may have decided at this very moment.
        return (self.decision() if guard is None else self._under(guard, work))

    def decision(self) -> Optional[Decision]:
        """What was decided, if anything was."""
        key = self._options.name
        return self._thread.run(lambda it: _once.decision(it, key))

    def forget(self) -> None:
        """Makes it undecided: the job would run again."""
        name = _once.register(self._options.name)
        self._thread.run(lambda it: _registers.write(it, name, None, ANY))

    def _under(self, guard: Guard, work: Work) -> Decision:
        key, keep = self._options.name, self._keep
        try:
            # The holder before may have decided.
            decided = self.decision()
            if decided is None:
                value = _registers.as_bytes(work(guard))
                record = guard._record
                decided = self._thread.run(
                    lambda it: _once.decide(it, key, record, value, keep)
                )
            return decided
        finally:
            # What was decided is stored: a release that fails changes nothing about it.
            try:
                guard.release()
            except Error:
                pass
