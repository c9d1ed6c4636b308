"""What travels: JSON of the lock service. Durations are whole milliseconds there and seconds here;
tokens, versions and ids are strings there. No I/O, no clock."""

from __future__ import annotations

import base64
import math
import os
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple, Union

from ._errors import (
    BreakRecord,
    Conflict,
    Error,
    Holder,
    Invalid,
    LimitMismatch,
    LockLost,
    LossReason,
    Refused,
    Stale,
    Unavailable,
    Unsupported,
)

Json = Dict[str, Any]

LONGEST_WAIT = 25.0
"""The longest wait of one request, in seconds."""


def random_id() -> str:
    """128 random bits: the id of a claim or of a write."""
    return os.urandom(16).hex()


def ms_up(seconds: float) -> int:
    """For what a client asks for: never less."""
    return math.ceil(round(seconds * 1000, 6))


@dataclass(frozen=True)
class Claim:
    """What a client puts into the queue of a lock, and sends with every request about it.

    The id is a secret: every client that has it can renew and release the claim.
    """

    id: str
    namespace: str
    name: str
    mode: str
    permits: Optional[int]
    limit: Optional[int]
    ttl: float
    wait_ttl: float
    holder: Holder
    note: Optional[str]

    def json(self) -> Json:
        claim: Json = {
            "id": self.id,
            "namespace": self.namespace,
            "name": self.name,
            "mode": self.mode,
            "ttl_ms": ms_up(self.ttl),
            "wait_ttl_ms": ms_up(self.wait_ttl),
            "holder": holder_json(self.holder),
        }
        optional = {"permits": self.permits, "limit": self.limit, "note": self.note}
        claim.update((name, value) for name, value in optional.items() if value is not None)
        return claim

    def __repr__(self) -> str:
        return f"Claim({self.name!r}, {self.mode})"


_MARK = "\x1f"
_DELAY = "delay="


def marked(note: Optional[str], lock_delay: float) -> Optional[str]:
    """The note of a claim with this lock delay, which is shown with the claim and stored nowhere else."""
    return f"{note or ''}{_MARK}{_DELAY}{ms_up(lock_delay)}" if lock_delay else note


def unmarked(note: Optional[str]) -> Tuple[Optional[str], float]:
    """The note as it was given, and the lock delay in seconds."""
    text, *marks = (note or "").split(_MARK)
    delays = [it[len(_DELAY) :] for it in marks if it.startswith(_DELAY)]
    delay = int(delays[0]) / 1000 if delays and delays[0].isdecimal() else 0.0
    return text or None, delay


@dataclass(frozen=True)
class Held:
    """The claim holds. ``remaining`` counts from before the request was sent; ``margin`` of it is not
    to be trusted."""

    token: int
    ttl: float
    remaining: float
    ambiguous: int
    margin: float = 0.0


@dataclass(frozen=True)
class Waiting:
    """The claim is in the queue."""

    ambiguous: int


@dataclass(frozen=True)
class Busy:
    """The claim could not hold at once, and is not in the queue."""

    ambiguous: int


@dataclass(frozen=True)
class Ended:
    """The claim is not live, and never will be again."""

    reason: LossReason
    broken: Optional[BreakRecord]

    @property
    def stays(self) -> bool:
        """Whether it stays in the queue until it is released, or its lease ends: after a graceful
        break."""
        forced = self.broken is not None and self.broken.forced
        return self.reason is LossReason.BROKEN and not forced


State = Union[Held, Waiting, Busy, Ended]


def state(answer: Json) -> State:
    """Reads the state of a claim; raises the error of one that failed by itself."""
    kind = answer.get("state")
    ambiguous = answer.get("ambiguous", 0)
    if kind == "held":
        ttl, remaining = answer["ttl_ms"] / 1000, answer["remaining_ms"] / 1000
        least_margin = answer.get("margin_ms", 0) / 1000
        return Held(int(answer["token"]), ttl, min(remaining, ttl), ambiguous, least_margin)
    if kind == "waiting":
        return Waiting(ambiguous)
    if kind == "busy":
        return Busy(ambiguous)
    if kind == "ended":
        return _ended(answer)
    raise problem(answer)


def shortened(claim: Claim, ttl: float) -> Json:
    """Asks for a lease that ends so many seconds from now."""
    return {"claim": claim.json(), "ttl_ms": ms_up(ttl)}


def found(answer: Json) -> str:
    """Reads what a release found."""
    return str(answer["found"])


def renewals(answer: Json) -> List[Json]:
    """Reads the answers to many renewals."""
    return list(answer["answers"])


_REASONS = {"broken": LossReason.BROKEN, "session_ended": LossReason.SESSION_ENDED}


def _ended(loss: Json) -> Ended:
    record = loss.get("break")
    reason = _REASONS.get(loss.get("reason", ""), LossReason.VANISHED)
    return Ended(reason, None if record is None else break_record(record))


def problem(answer: Json) -> Error:
    """The exception that a problem (RFC 9457) of the service is. Raises ``KeyError`` and others for
    what another service says."""
    error = _problem(answer)
    error.maybe_done = int(answer.get("ambiguous", 0)) > 0
    return error


def _problem(answer: Json) -> Error:
    code, detail = answer["code"], answer["detail"]
    if not isinstance(code, str) or not isinstance(detail, str):
        raise TypeError("no problem of a lock service")
    if code == "ended":
        ended = _ended(answer.get("loss") or {})
        return LockLost(ended.reason, ended.broken)
    if code == "limit_mismatch":
        return LimitMismatch(detail, int(answer.get("in_use", 0)), int(answer.get("asked", 0)))
    if code in ("invalid", "too_large"):
        return Invalid(detail)
    if code == "unsupported":
        return Unsupported(detail)
    if code in ("unavailable", "too_many", "too_slow"):
        return Unavailable(detail)
    return Refused(detail, code)


def holder_json(holder: Holder) -> Json:
    return {"host": holder.host, "pid": holder.pid, "program": holder.program}


def holder(answer: Json) -> Holder:
    return Holder(answer["host"], answer["pid"], answer["program"])


def break_record(answer: Json) -> BreakRecord:
    by, reason = holder(answer["by"]), answer.get("reason")
    return BreakRecord(by, answer["at_unix_ms"], reason, answer["forced"])


# What is seen of locks.


@dataclass(frozen=True)
class ClaimState:
    """One claim in the queue of a lock. Durations are in seconds, at the moment of the look."""

    token: int
    mode: str
    """``exclusive``, ``shared`` or ``permits``."""
    permits: Optional[int]
    limit: Optional[int]
    holder: Holder
    note: Optional[str]
    ttl: float
    expires_in: float
    queued_for: float
    held_for: Optional[float]
    """``None`` while it waits."""
    broken: bool
    """It was broken gracefully, and goes when its lease ends."""
    lock_delay: float = 0.0
    """How long the name stays closed when its holder loses it, in seconds."""


@dataclass(frozen=True)
class LockState:
    """A lock as it was when the service looked."""

    name: str
    space: str
    """``lock`` or ``semaphore``."""
    queue: Tuple[ClaimState, ...]
    """The live claims in their order; those that hold come first."""
    last_break: Optional[BreakRecord]

    @property
    def holders(self) -> Tuple[ClaimState, ...]:
        """The claims that hold."""
        return tuple(it for it in self.queue if it.held_for is not None)

    @property
    def waiters(self) -> Tuple[ClaimState, ...]:
        """The claims in the queue that do not hold yet."""
        return tuple(it for it in self.queue if it.held_for is None)


def was_found(answer: Json) -> bool:
    """Reads whether there was a claim to break."""
    return bool(answer["found"])


def page(answer: Json) -> Tuple[List[LockState], Optional[str]]:
    """Reads a page of a list, and where the next one begins."""
    return [lock_state(it) for it in answer["locks"]], answer.get("next")


def lock_state(answer: Json) -> LockState:
    record = answer.get("last_break")
    queue = tuple(_standing(it) for it in answer["queue"])
    last_break = None if record is None else break_record(record)
    return LockState(answer["name"], answer.get("space", "lock"), queue, last_break)


def _standing(it: Json) -> ClaimState:
    held_for = it.get("held_for_ms")
    note, lock_delay = unmarked(it.get("note"))
    return ClaimState(
        token=int(it["token"]),
        mode=it["mode"],
        permits=it.get("permits"),
        limit=it.get("limit"),
        holder=holder(it["holder"]),
        note=note,
        ttl=max(0.0, it["ttl_ms"] / 1000 - lock_delay),
        expires_in=it["expires_in_ms"] / 1000,
        queued_for=it["queued_for_ms"] / 1000,
        held_for=None if held_for is None else held_for / 1000,
        broken=it["broken"],
        lock_delay=lock_delay,
    )


def seen(it: ClaimState) -> Json:
    """What tells two lines apart, of one claim."""
    claim: Json = {
        "token": str(it.token),
        "mode": it.mode,
        "holds": it.held_for is not None,
        "broken": it.broken,
    }
    if it.permits is not None:
        claim.update(permits=it.permits, limit=it.limit)
    return claim


# Registers.


@dataclass(frozen=True)
class Entry:
    """What a register holds."""

    value: bytes
    version: int
    """It only grows, across deletion too."""
    token: Optional[int]
    """The highest fencing token of any write."""


def entry(answer: Json) -> Optional[Entry]:
    it = answer["entry"]
    if it is None:
        return None
    value, token = it["value"], it.get("token")
    data = value["text"].encode() if "text" in value else base64.b64decode(value["base64"])
    return Entry(data, int(it["version"]), None if token is None else int(token))


def value_json(value: bytes) -> Json:
    return {"base64": base64.b64encode(value).decode()}


def outcome(answer: Json, name: str, token: Optional[int], maybe_applied: bool) -> int:
    """The version that was stored; raises what became of the write instead."""
    maybe_applied = maybe_applied or answer.get("ambiguous", 0) > 0
    kind = answer.get("outcome")
    if kind == "stored":
        return int(answer["version"])
    if kind == "stale":
        raise Stale(name, token or 0, int(answer["highest"]), maybe_applied)
    if kind == "conflict":
        raise Conflict(name, maybe_applied)
    raise problem(answer)
