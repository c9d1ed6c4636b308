"""The exceptions of this package, and the reasons for which a lock is lost. No I/O."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Optional, Tuple, Type


@dataclass(frozen=True)
class Holder:
    """The process behind a claim, as shown to people."""

    host: str
    pid: int
    program: str

    def __str__(self) -> str:
        return f"{self.program}[{self.pid}]@{self.host}"


@dataclass(frozen=True)
class BreakRecord:
    """Who broke a lock, when and why."""

    by: Holder
    at_unix_ms: int
    """Milliseconds since 1970 by the breaker's clock: for people, not for decisions."""
    reason: Optional[str]
    forced: bool
    """Whether the lock moved on at once, instead of when its lease ended."""


class LossReason(enum.Enum):
    """Why a lock ended without having been released."""

    EXPIRED = "its lease ended"
    """It was not renewed in time, or was not to be renewed."""
    MAX_HOLD = "it was held for as long as its max_hold allows"
    BROKEN = "it was broken"
    """Another client or an operator broke it; ``LockLost.broken`` says who."""
    SESSION_ENDED = "the backend ended its session"
    UNREACHABLE = "the service or its backend did not answer until its lease ended"
    """``LockLost.detail`` has the last error."""
    REFUSED = "the service refused to renew it until its lease ended"
    """A token or a right was withdrawn, for example; ``LockLost.detail`` has the last error."""
    VANISHED = "the backend does not have it any more"
    """Data was lost or deleted, or the clock of the backend was moved."""
    CLOSED = "its connection object was closed"
    FORKED = "this process is a fork of the one that holds it"


class Error(Exception):
    """The base of all exceptions of this package. They can be copied and pickled, as they are when
    a worker process passes them on.

    ``maybe_done``: the request may have been carried out, since one of its attempts got no answer.
    The package cleans up behind it.
    """

    maybe_done = False

    def __reduce__(self) -> Tuple[Any, ...]:
        # Not by calling the constructor, which takes other arguments than `args` has.
        return _made, (type(self), self.args), self.__dict__ or None


def _made(kind: Type[Error], args: Tuple[Any, ...]) -> Error:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class LockLost(Error):
    """The lock was held, or waited for, and is not any more. Leave alone what it protected.

    ``broken`` says who broke it, ``detail`` what the last error of its renewal was.
    """

    def __init__(
        self, reason: LossReason, broken: Optional[BreakRecord] = None, detail: str = ""
    ) -> None:
        said = reason.value
        if broken is not None:
            forced = " by force" if broken.forced else ""
            why = f": {broken.reason}" if broken.reason else ""
            said = f"{said} by {broken.by}{forced}{why}"
        if detail:
            said = f"{said}: {detail}"
        super().__init__(f"the lock was lost: {said}")
        self.reason = reason
        self.broken = broken
        self.detail = detail


class LockReleased(Error):
    """The lock was released by this program."""

    def __init__(self) -> None:
        super().__init__("this lock was released")


class LimitMismatch(Error):
    """The semaphore is in use with another limit. Use the same limit everywhere."""

    def __init__(self, detail: str, in_use: int, asked: int) -> None:
        super().__init__(detail)
        self.in_use = in_use
        self.asked = asked


class Conflict(Error):
    """A register was not as expected: another client wrote to it.

    ``maybe_applied``: an answer was lost before this one came, so an earlier attempt of this write
    may have been applied and overwritten since.
    """

    def __init__(self, name: str, maybe_applied: bool) -> None:
        doubt = " (an earlier attempt may have been applied)" if maybe_applied else ""
        said = f"the register {name!r} was changed by another client: load it again"
        super().__init__(said + doubt)
        self.maybe_applied = maybe_applied


class Stale(Error):
    """A register has been written by a later holder of the lock: stop the work."""

    def __init__(self, name: str, token: int, highest: int, maybe_applied: bool) -> None:
        super().__init__(
            f"the register {name!r} has been written with token {highest}: token {token} is stale"
        )
        self.token = token
        self.highest = highest
        self.maybe_applied = maybe_applied


class Invalid(Error, ValueError):
    """A name, duration, URL or other argument that cannot work. Nothing was done."""


class Unsupported(Error):
    """The backend of this service cannot do this."""


class Refused(Error):
    """The service or its backend refuses until an operator does something about it.

    ``code`` is the service's: ``unauthorized``, ``forbidden``, ``backend`` or another one; empty
    where no lock service answered.
    """

    def __init__(self, detail: str, code: str = "", maybe_done: bool = True) -> None:
        super().__init__(detail)
        self.code = code
        self.maybe_done = maybe_done


class Unavailable(Error):
    """No answer: the service cannot be reached or its backend does not answer. Try again."""

    def __init__(self, detail: str, maybe_done: bool = True) -> None:
        super().__init__(detail)
        self.maybe_done = maybe_done


class Closed(Error):
    """The connection object was closed, or belongs to the process that this one was forked from."""

    def __init__(self, detail: str = "these locks were closed") -> None:
        super().__init__(detail)
