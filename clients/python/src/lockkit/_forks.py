"""Forks of this process: what was there before belongs to the parent, also where the memory of the
child has a copy. No I/O."""

from __future__ import annotations

import os
import threading
import weakref
from typing import List, Protocol, Tuple

Process = Tuple[int, int]


class Forked(Protocol):
    """What is made anew in a child."""

    def forked(self) -> None:
        """Called in the child, before any other code of the program."""


_forks = 0
# Reentrant: a signal handler may fork, or connect, while its own thread has it.
_lock = threading.RLock()
_told: "weakref.WeakSet[Forked]" = weakref.WeakSet()
_inherited: List[object] = []


def this_process() -> Process:
    """Differs between a process and its children: by a counter, since process ids are used again,
    and by the process id, since C code may fork without a word."""
    return (_forks, os.getpid())


def tell(it: Forked) -> None:
    """Has ``it.forked()`` called in children."""
    with _lock:
        _told.add(it)


def keep(*inherited: object) -> None:
    """Keeps what a child has from its parent, unused: the end of an event loop or of a connection
    would be felt by the parent, with which it shares sockets and the set that they are polled by."""
    _inherited.extend(it for it in inherited if it is not None)


def _before() -> None:
    # So that no other thread is changing the set.
    _lock.acquire()


def _in_parent() -> None:
    _lock.release()


def _in_child() -> None:
    global _forks, _lock
    _forks += 1
    _lock = threading.RLock()
    for it in list(_told):
        it.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
