"""What was decided for a key: how a register keeps it. The same bytes as the Rust library writes:
one byte for the encoding, two for the length of a JSON head, the head, the value."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Optional

from . import _registers
from ._engine import Engine
from ._errors import Conflict, Holder, Invalid, Refused
from ._record import Record
from ._wire import holder, holder_json

ENCODING = 1
LONGEST_VALUE = 60_000
KEEP = 7 * 86_400.0


@dataclass(frozen=True)
class Decision:
    """What was decided for a key, by whom and when."""

    value: bytes
    """What the work returned."""
    by: Holder
    at_unix_ms: int
    """Milliseconds since 1970 by the clock of the process that did it: for people."""
    token: int
    """The fencing token of the lock under which it was done."""


def encoded(decision: Decision) -> bytes:
    head = {"by": holder_json(decision.by), "at": decision.at_unix_ms, "token": decision.token}
    text = json.dumps(head, separators=(",", ":")).encode()
    return bytes([ENCODING]) + len(text).to_bytes(2, "big") + text + decision.value


def decoded(value: bytes) -> Decision:
    try:
        if value[0] != ENCODING:
            raise ValueError
        end = 3 + int.from_bytes(value[1:3], "big")
        head = json.loads(value[3:end])
        return Decision(value[end:], holder(head["by"]), head["at"], head["token"])
    except (ValueError, LookupError, TypeError) as error:
        raise Refused("this decision was not written by this version of lockkit") from error


def register(key: str) -> str:
    return f"{_registers.RESERVED}once/{key}"


async def decision(engine: Engine, key: str) -> Optional[Decision]:
    entry = await _registers.load(engine, register(key))
    return None if entry is None else decoded(entry.value)


async def decide(engine: Engine, key: str, lock: Record, value: bytes, keep: float) -> Decision:
    """Decides, under the lock of the key; what stands: this, or an earlier decision.

    Not fenced: a fence is remembered for good, and there are new keys every day. A process that
    decides late has done the work, and the one that decided first is right.
    """
    if len(value) > LONGEST_VALUE:
        raise Invalid(f"a decision has {LONGEST_VALUE} bytes at most, not {len(value)}")
    mine = Decision(value, engine.holder, int(time.time() * 1000), lock.token())
    try:
        await _registers.write(engine, register(key), encoded(mine), None, ttl=keep)
        return mine
    except Conflict:
        earlier = await decision(engine, key)
        if earlier is None:
            raise
        return earlier
