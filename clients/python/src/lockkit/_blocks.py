"""The guards of blocks that were begun with ``with handle:``. No I/O.

A ``with`` statement looks ``__exit__`` up when it begins, and keeps what it found until it ends. Here
it finds a :class:`Block` of its own, which is then given the guard. So the guard belongs to the
block, wherever that is left: in another thread, in another task, by a generator that is closed. A
block that ends without leaving, because an exception came at the wrong moment, drops the guard, and
a guard that nothing refers to is released.

``handle.__enter__()`` that is called by hand has no block: its guard is kept in a list of the handle.
"""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any, Callable, Dict, Generic, List, Optional, Tuple, TypeVar

from ._held_lock import HeldLock

G = TypeVar("G", bound=HeldLock)

Caller = Tuple[int, int]
"""A frame, by what it is and what it runs: the address alone is used again. Not the frame itself,
which would keep all its variables alive."""


def caller_of(frame: FrameType) -> Caller:
    return (id(frame), id(frame.f_code))


_begun: Dict[Caller, "weakref.ref[Block[Any]]"] = {}
"""Blocks that were looked up and not entered yet. There is no lock around it, which a signal handler
or a fork could meet: each step is atomic."""


class Block(Generic[G]):
    """What one ``with`` statement calls at its end."""

    def __init__(self, handle: Any, leave: Callable[..., Any]) -> None:
        self.guard: Optional[G] = None
        self.handle = handle
        """``None`` when it was looked up on the class, as ``contextlib.ExitStack`` does."""
        self._leave = leave

    def __call__(self, *arguments: Any) -> Any:
        handle = self.handle
        if handle is None:
            handle, *arguments = arguments  # type: ignore[assignment]
        guard, self.guard = self.guard, None
        if guard is None:
            guard = handle._blocks.take(caller_of(sys._getframe(1)))
        return self._leave(guard, *arguments)


class EachBlock:
    """The descriptor behind ``__exit__`` and ``__aexit__``: another ``Block`` for each look-up."""

    def __init__(self, leave: Callable[..., Any]) -> None:
        self._leave = leave

    def __get__(self, handle: Any, owner: Any = None) -> "Block[Any]":
        block: "Block[Any]" = Block(handle, self._leave)
        caller = caller_of(sys._getframe(1))

        def forget(ref: "weakref.ref[Block[Any]]") -> None:
            if _begun.get(caller) is ref:
                _begun.pop(caller, None)

        _begun[caller] = weakref.ref(block, forget)
        return block


def begun(handle: object, caller: Caller) -> "Optional[Block[Any]]":
    """The block that this frame is about to enter with this handle; ``None`` where ``__enter__`` is
    called by hand."""
    ref = _begun.pop(caller, None)
    block = None if ref is None else ref()
    return block if block is not None and block.handle in (None, handle) else None


class _Entry(Generic[G]):
    def __init__(self, guard: G, caller: Caller, party: "Optional[weakref.ref[Any]]") -> None:
        self.guard = guard
        self.caller = caller
        self.party = party


class OpenBlocks(Generic[G]):
    """The guards of a handle whose ``__enter__`` was called by hand. They stay until ``__exit__`` is:
    whoever has the handle may call that. ``party`` is the thread or task that runs."""

    def __init__(self, party: Callable[[], Any]) -> None:
        self._party = party
        self._entries: List[_Entry[G]] = []

    def add(self, guard: G, caller: Caller) -> None:
        party = self._party()
        ref = None if party is None else weakref.ref(party)
        self._entries.append(_Entry(guard, caller, ref))

    def take(self, caller: Caller) -> G:
        """The guard that is to be released."""
        while True:
            entries = list(self._entries)
            if not entries:
                raise RuntimeError("this handle was not entered, or was left already")
            entry = self._chosen(entries, caller)
            try:
                self._entries.remove(entry)
            except ValueError:
                continue  # another thread was faster
            return entry.guard

    def _chosen(self, entries: List[_Entry[G]], caller: Caller) -> _Entry[G]:
        """What the same frame entered. Otherwise the newest of this thread or task, but not while
        another one's was lost: giving back a lost lock takes it from nobody."""
        same = [it for it in entries if it.caller == caller]
        if same:
            return same[-1]
        party = self._party()
        own = [it for it in entries if it.party is not None and it.party() is party]
        lost = [it for it in entries if it.guard._record.loss() is not None]
        if own and all(it in own for it in lost):
            return own[-1]
        return (lost or entries)[0]
