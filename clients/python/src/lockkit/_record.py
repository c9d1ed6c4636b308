"""The rules of time: how an answer of the service becomes a deadline. They stand here only.

1. A deadline counts from the moment before the request was sent that the service answered, plus
   ``remaining``, less the margin for clocks of different rates: the greater of ours and of the one
   that the answer names. Never from the arrival.
2. A renewal never shortens it.
3. An answer that comes after the deadline does not revive the lock.

Records change in the event loop, and are read in any thread: what is read together is one tuple,
which is replaced at once.
"""

from __future__ import annotations

import math
import random
import weakref
from typing import TYPE_CHECKING, Callable, List, NamedTuple, Optional, Protocol, Union

from . import _forks
from ._clock import Clock
from ._errors import BreakRecord, Error, LockLost, LockReleased, LossReason, Unavailable
from ._settings import margin
from ._wire import Claim, Ended, Held, State

if TYPE_CHECKING:
    from ._engine import Hold


class Loss(NamedTuple):
    """Why a lock was lost."""

    reason: LossReason
    broken: Optional[BreakRecord] = None
    detail: str = ""

    def error(self) -> LockLost:
        return LockLost(*self)


class Validity(NamedTuple):
    """What is known of a claim that holds."""

    token: int
    ttl: float
    deadline: float
    margin: float
    """By how much the lease may last longer."""
    failures: int = 0
    trouble: Optional[Loss] = None
    """What the end of the lease would be put down to: the last renewal failed."""


class Over(NamedTuple):
    """The claim has ended: with a loss, or without one when it was released."""

    loss: Optional[Loss]


class Listener(Protocol):
    """What is notified of the end of a claim."""

    def ended(self) -> None:
        """The claim is over: with a loss, or without one."""


class Record:
    """A claim of this process that holds or held."""

    def __init__(
        self,
        claim: Claim,
        clock: Clock,
        uncertain: bool,
        renewed: bool,
        max_hold: Optional[float] = None,
        at_least: Optional[float] = None,
        lock_delay: float = 0.0,
    ) -> None:
        self.claim = claim
        self.uncertain = uncertain
        """Whether an acquire of it got no answer, and may yet put it into the queue after its release."""
        self.due = math.inf
        """When it is to be renewed."""
        self.asking = False
        """Whether a renewal is under way."""
        self.leaving = False
        """Its lease is being made to end earlier: it must not be trusted any more."""
        self.stays = False
        """Its claim was broken, and keeps others out until it is released."""
        self.scheduled = math.inf
        """When the renewer looks at it."""
        self.hold: "Callable[[], Optional[Hold]]" = lambda: None
        """What no hold refers to is not renewed: a weak reference."""
        self._renewed = renewed
        self._max_hold = max_hold
        self._at_least = at_least
        self.least_end = 0.0
        """Until when it is to stay held, whenever it is released."""
        self.lock_delay = lock_delay
        """For how long its name stays closed after a loss: then it is neither renewed nor released."""
        self._stop = math.inf
        self._clock = clock
        self._process = _forks.this_process()
        self._now: Union[Validity, Over, None] = None
        # Weak: the renewer keeps this, and what listens leads to the guard.
        self._listeners: "List[weakref.ref[Listener]]" = []

    # Read in any thread.

    def token(self) -> int:
        """The token of a lock that is valid; raises otherwise."""
        now = self._now
        loss = self.loss(now)
        if loss is not None:
            raise loss.error()
        if not isinstance(now, Validity) or self.leaving:
            raise LockReleased
        return now.token

    def remaining(self) -> float:
        now = self._now
        if not isinstance(now, Validity) or self.leaving or self.loss(now) is not None:
            return 0.0
        return max(0.0, now.deadline - self._clock.now())

    def is_over(self) -> bool:
        return isinstance(self._now, Over)

    def is_done(self) -> bool:
        """Whether it has ended, and has no claim left to release."""
        return self.is_over() and not self.stays

    def is_foreign(self) -> bool:
        """Whether it belongs to the process that this one was forked from."""
        return self._process != _forks.this_process()

    def loss(self, now: Union[Validity, Over, None] = None) -> Optional[Loss]:
        """Why it was lost, if it was: also when nothing has noticed yet."""
        now = self._now if now is None else now
        if isinstance(now, Over):
            return now.loss
        if self.is_foreign():
            return Loss(LossReason.FORKED)
        if self.leaving:
            return None
        if isinstance(now, Validity) and self._clock.now() >= now.deadline:
            if now.deadline >= self._stop:
                return Loss(LossReason.MAX_HOLD)
            return now.trouble or Loss(LossReason.EXPIRED)
        return None

    # Called in the event loop.

    def grant(self, held: Held, sent: float) -> bool:
        """Takes the answer to a request that was sent at ``sent``; says whether it holds now."""
        now, validity = self._clock.now(), self._now
        ttl, remaining = held.ttl - self.lock_delay, held.remaining - self.lock_delay
        unused = max(margin(max(0.0, ttl)), held.margin)
        until = sent + remaining - unused
        if isinstance(validity, Over):
            return False
        if validity is not None:
            if validity.deadline <= now:
                return False  # too late to save it
            until = max(until, validity.deadline)
        elif self._max_hold is not None:
            self._stop = now + self._max_hold
        until = min(until, self._stop)
        if until <= now:
            return False
        if validity is None and self._at_least is not None:
            self.least_end = now + self._at_least
        self._now = Validity(held.token, ttl, until, unused)
        # The lease counts from where it has its whole ttl left.
        began = sent - (ttl - remaining)
        renewed = self._renewed and until < self._stop
        self.due = max(began + ttl / 3, now) if renewed else math.inf
        return True

    def renewed(self, state: State, sent: float) -> None:
        """Takes the answer to a renewal that was sent at ``sent``."""
        if isinstance(state, Held):
            self.grant(state, sent)
        elif isinstance(state, Ended):
            # With a lock delay it is left to its lease. First: other threads look once it has ended.
            self.stays = state.stays and not self.lock_delay
            self.end(self.loss() or Loss(state.reason, state.broken))
        else:
            # It held, and waits now: the backend lost what it knew.
            self.end(Loss(LossReason.VANISHED))

    def is_short(self, round_trip: float) -> bool:
        """Whether so little is left of a grant that came late that its first use might fail. A lock
        that is renewed is, at once: a tenth of what is trusted is enough for that, if it is time for
        two round trips. One that is not renewed is to last for half of it."""
        validity = self._now
        if not isinstance(validity, Validity) or validity.deadline >= self._stop:
            return False
        trusted, left = validity.ttl - validity.margin, validity.deadline - self._clock.now()
        enough = max(trusted / 10, 2 * round_trip) if self._renewed else trusted / 2
        return left < enough

    def renewal_failed(self, error: Error) -> None:
        """Tries again soon."""
        validity = self._now
        if isinstance(validity, Validity):
            passes = isinstance(error, Unavailable)
            reason = LossReason.UNREACHABLE if passes else LossReason.REFUSED
            trouble = Loss(reason, None, str(error))
            self._now = validity._replace(failures=validity.failures + 1, trouble=trouble)
            self.due = self._clock.now() + backoff(validity.failures + 1)

    def expire(self) -> bool:
        """Ends a lock whose deadline has passed; says whether it did."""
        loss = self.loss()
        return isinstance(self._now, Validity) and loss is not None and self.end(loss)

    def left_until(self) -> float:
        """Until when it is to stay held although it is released now; 0 when that is over."""
        return self.least_end if self.least_end > self._clock.now() else 0.0

    def set_at_least(self, at_least: Optional[float]) -> None:
        """Changes how long it is to stay held, from now on."""
        self.least_end = 0.0 if at_least is None else self._clock.now() + at_least

    def close(self) -> bool:
        """Marks it as released, unless it has ended; says whether it was this call that did."""
        return self.end(None)

    def end(self, loss: Optional[Loss]) -> bool:
        """Marks it as lost, or without a loss as released, unless it has ended; says whether it was
        this call that did."""
        if isinstance(self._now, Over):
            return False
        self._now = Over(loss)
        self.due = math.inf
        for ref in self._listeners:
            listener = ref()
            if listener is not None:
                listener.ended()
        return True

    def tell(self, listener: Listener) -> None:
        """Tells this of the end, as long as anything else refers to it."""
        self._listeners.append(weakref.ref(listener))
        if self.is_over():
            listener.ended()

    def next_event(self) -> float:
        """When something is to be done: a renewal, or its end."""
        validity = self._now
        if self.leaving:
            return math.inf
        deadline = validity.deadline if isinstance(validity, Validity) else math.inf
        return deadline if self.asking else min(self.due, deadline)

    def renewable(self, now: float) -> bool:
        """Whether it may as well be renewed when another one is: its turn comes within half the
        usual interval."""
        validity, idle = self._now, not self.asking and not self.leaving
        return isinstance(validity, Validity) and idle and self.due <= now + validity.ttl / 6

    def lease_end(self) -> float:
        """When the backend ends the lease that is known here, lock delay included; where ``max_hold``
        ends it, only the lock delay is waited for."""
        validity = self._now
        if not isinstance(validity, Validity):
            return 0.0
        if validity.deadline >= self._stop:
            return self._stop + self.lock_delay if self.lock_delay else 0.0
        return validity.deadline + validity.margin + self.lock_delay

    def closed_until(self) -> float:
        """Until when the claim of a lock that was lost is neither renewed nor released: its lock delay
        keeps the name closed. 0 where there is none, and for a lock that is not lost."""
        return self.lease_end() if self.lock_delay and self.loss() is not None else 0.0


def backoff(failures: int) -> float:
    """How long to wait after so many failures in a row: from 25 ms, doubled up to a second, of
    which a random half is taken off so that clients do not march in step."""
    full: float = min(1.0, 0.025 * 2 ** min(max(failures, 1), 6))
    return full * random.uniform(0.5, 1.0)
