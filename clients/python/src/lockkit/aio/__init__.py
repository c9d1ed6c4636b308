"""Distributed locks of a lockkit service, for asyncio.

    from lockkit import aio

    async with aio.connect("http://127.0.0.1:7411") as locks:
        async with locks.mutex("invoice/42") as lock:
            await ledger.write(invoice, lock.token)

The same as ``lockkit``, with coroutines for what waits. A task renews the locks: an event loop that
is blocked for longer than a ttl loses them, and ``lock.is_valid()`` and ``lock.token`` say so.

# Cancellation
A call that is cancelled leaves no lock behind: its claim is taken back in the background.
"""

from .._held_lock import AsyncLost
from ._group import Election, Once
from ._guard import Acquiring, Guard
from ._locks import Locks, connect
from ._mutex import Mutex
from ._primitives import RwLock, Semaphore
from ._register import Register
from ._slots import SlotGuard, Slots

__all__ = [
    "Acquiring",
    "AsyncLost",
    "Election",
    "Guard",
    "Locks",
    "Mutex",
    "Once",
    "Register",
    "RwLock",
    "Semaphore",
    "SlotGuard",
    "Slots",
    "connect",
]
