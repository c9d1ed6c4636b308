"""Slots: a permit of a semaphore, and then the lock of the lowest number that is free."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Optional, Set, Tuple

from . import _inspect
from ._connection import Elapsed
from ._engine import Engine, Hold
from ._errors import Invalid, LockLost, LossReason, Unavailable
from ._record import Loss, Record, backoff
from ._requests import Options

MOST_BYTES = 480
"""The longest name of slots: a lock's name has room for a number behind it."""
TRIES = 3
"""How often a try lists the slots."""

Numbered = Tuple[int, Hold, Hold]
"""A number, the hold of its lock, the hold of its permit."""


def checked(options: Options, slots: int) -> Options:
    """Refuses what cannot be slots."""
    if len(options.name.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise Invalid(f"a name of slots has at most {MOST_BYTES} bytes")
    if slots < 1:
        raise Invalid("there is one slot at least")
    return options


async def acquire(
    engine: Engine, options: Options, slots: int, limit: Optional[float]
) -> Optional[Numbered]:
    """A slot, within so many seconds: 0 does not wait, ``None`` waits for good."""
    until = math.inf if not limit else engine.loop.time() + limit
    waits = limit != 0
    while True:
        left = max(0.001, until - engine.loop.time()) if limit else limit
        permit = await engine.acquire(options.permits(1, slots), left)
        if permit is None:
            return None
        # A permit without a slot is given back at once.
        permit.record.set_at_least(None)
        try:
            found = await _find(engine, options, slots, permit.record, waits, until)
            if found is not None:
                permit.record.set_at_least(options.request.at_least)
                return (*found, permit)
        except Elapsed:
            pass
        except BaseException:
            engine.abandoned(permit.record)
            raise
        lost = permit.record.loss()
        engine.abandoned(permit.record)
        if lost is None or not waits or engine.loop.time() >= until:
            return None


async def _find(
    engine: Engine, options: Options, slots: int, permit: Record, waits: bool, until: float
) -> Optional[Tuple[int, Hold]]:
    """The lowest number that is free; ``None`` when there is none and this does not wait for one, and
    when the permit is lost."""
    beginning, rounds = f"lockkit.slot/{options.name}/", 0
    while permit.loss() is None:
        try:
            taken = await _taken(engine, beginning)
            for number in range(slots):
                if number in taken:
                    continue
                name = f"{beginning}{number}"
                hold = await engine.acquire(replace(options.exclusive(), name=name), 0)
                if hold is not None:
                    return number, hold
        except Unavailable as error:
            if not waits:
                raise
            engine.retrying(error)
        rounds += 1
        if not waits and rounds == TRIES:
            return None
        await engine.sleep(backoff(rounds), until)
    return None


async def _taken(engine: Engine, beginning: str) -> Set[int]:
    """The numbers that are held or waited for."""
    states = await _inspect.list_locks(engine, beginning)
    ends = (it.name[len(beginning) :] for it in states if it.space == "lock" and it.queue)
    # `+1` and `01` are other names.
    return {int(end) for end in ends if end.isdecimal() and str(int(end)) == end}


class NumberedLock:
    """A slot that was taken: its number, its token, and whether it is still valid. Reading does no
    I/O."""

    def __init__(self, name: str, number: int, slot: Record, permit: Record) -> None:
        self._name = name
        self._number = number
        self._slot_record = slot
        self._permit_record = permit

    @property
    def name(self) -> str:
        """The name of the slots, without the number."""
        return self._name

    @property
    def number(self) -> int:
        """Which slot: 0 is the first."""
        return self._number

    @property
    def token(self) -> int:
        """The fencing token of this number: it grows from holder to holder. Raises ``LockLost`` once
        the slot or its permit is not valid, and ``LockReleased`` after the release."""
        self._check_held()
        return self._slot_record.token()

    def _check_held(self) -> None:
        self._permit_record.token()
        self._slot_record.token()

    def is_valid(self) -> bool:
        """Whether the slot is held now, by this client's own clock."""
        return self.remaining() > 0

    def remaining(self) -> float:
        """How long the slot is valid without another renewal, in seconds; 0 when it is not."""
        return min(self._permit_record.remaining(), self._slot_record.remaining())

    @property
    def loss(self) -> Optional[LossReason]:
        """Why it was lost; ``None`` when it was not."""
        loss = self._loss()
        return None if loss is None else loss.reason

    def _loss(self) -> Optional[Loss]:
        return self._slot_record.loss() or self._permit_record.loss()

    def __repr__(self) -> str:
        state = "valid" if self.is_valid() else "not valid"
        return f"<{type(self).__name__} {self.name!r} {self.number}, {state}>"


async def release(engine: Engine, slot: Record, permit: Record) -> None:
    """The slot first, the permit last; raises ``LockLost`` when one of them was not held until now."""
    failure: Optional[BaseException] = None
    for record in (slot, permit):
        try:
            await engine.release(record)
        except Exception as error:
            if failure is None or isinstance(error, LockLost):
                failure = error
    if failure is not None:
        raise failure
