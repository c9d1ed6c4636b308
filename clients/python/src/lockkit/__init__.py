"""Distributed locks of a lockkit service, with fencing tokens.

    import lockkit

    locks = lockkit.connect("http://127.0.0.1:7411")
    with locks.mutex("invoice/42") as lock:
        ledger.write(invoice, lock.token)     # the ledger refuses a lower token than it has seen

``lockkit.aio`` has the same for asyncio. Durations are in seconds, or ``timedelta``.

What is promised while the backend keeps its data and its clock: while ``lock.is_valid()``, no other
client holds what conflicts; a later holder has a greater token, whatever happens; a lock is not
valid any more *before* another client can get it. Not promised is that work stops by itself when
its lock is lost: check ``lock.token`` where the work lands.
"""

from . import aio as aio
from ._clock import Clock
from ._errors import (
    BreakRecord,
    Closed,
    Conflict,
    Error,
    Holder,
    Invalid,
    LimitMismatch,
    LockLost,
    LockReleased,
    LossReason,
    Refused,
    Stale,
    Unavailable,
    Unsupported,
)
from ._held_lock import HeldLock, Lost
from ._once import Decision
from ._registers import ANY
from ._sync._group import Election, Once
from ._sync._guard import Guard
from ._sync._locks import Locks, connect
from ._sync._mutex import Mutex
from ._sync._primitives import RwLock, Semaphore
from ._sync._register import Register
from ._sync._slots import SlotGuard, Slots
from ._wire import Entry, LockState, ClaimState

__all__ = [
    "ANY",
    "BreakRecord",
    "Clock",
    "Closed",
    "Conflict",
    "Decision",
    "Election",
    "Entry",
    "Error",
    "Guard",
    "Holder",
    "Invalid",
    "HeldLock",
    "LimitMismatch",
    "LockLost",
    "LockReleased",
    "LockState",
    "Locks",
    "LossReason",
    "Lost",
    "Mutex",
    "Once",
    "Refused",
    "Register",
    "RwLock",
    "Semaphore",
    "SlotGuard",
    "Slots",
    "Stale",
    "ClaimState",
    "Unavailable",
    "Unsupported",
    "aio",
    "connect",
]
