"""Requests about registers, and when they are repeated."""

from __future__ import annotations

import asyncio
import enum
from typing import Optional, Union

from . import _inspect
from ._engine import Engine
from ._errors import Invalid, Unavailable
from ._record import Record, backoff
from ._wire import Entry, Json, entry, ms_up, outcome, random_id, value_json

PATIENCE = 30.0
"""How long a write without a lock is repeated while there is no answer, in seconds."""
LONGEST_VALUE = 64 * 1024
RESERVED = "lockkit."


class Anything(enum.Enum):
    """The type of ``ANY``."""

    ANY = "whatever is there"


ANY = Anything.ANY
"""What a write expects that takes whatever is there."""

Precondition = Union[Anything, None, int, Entry]
"""What a write expects to find: ``ANY``; ``None`` for no value; a version; the entry that was
read."""


def checked(name: str) -> str:
    """The name of a register of a user."""
    if name.startswith(RESERVED):
        raise Invalid('register names that begin with "lockkit." are lockkit\'s own')
    return name


def as_bytes(value: Union[bytes, str]) -> bytes:
    """Text is stored as UTF-8."""
    return value.encode() if isinstance(value, str) else bytes(value)


async def load(engine: Engine, name: str) -> Optional[Entry]:
    return await _inspect.repeat(engine, "/v1/registers/load", _at(engine, name), entry)


async def changed(engine: Engine, name: str, after: Optional[int]) -> Optional[Entry]:
    """What is there once its version is not ``after``."""
    body: Json = {"register": _at(engine, name)}
    if after is not None:
        body["after"] = str(after)
    while True:
        now = await _inspect.poll(engine, "/v1/registers/changed", body, entry)
        if (None if now is None else now.version) != after:
            return now


async def write(
    engine: Engine,
    name: str,
    value: Optional[bytes],
    expect: Precondition,
    lock: Optional[Record] = None,
    token: Optional[int] = None,
    ttl: Optional[float] = None,
) -> int:
    """Stores a value, or deletes it (``None``); the version that this has."""
    if value is not None and len(value) > LONGEST_VALUE:
        raise Invalid(f"a register keeps {LONGEST_VALUE} bytes, not {len(value)}")
    if ttl is not None and ttl <= 0:
        raise Invalid("a value that stays for 0 seconds is not stored: use more, or no ttl")
    if lock is not None:
        token = _fence(engine, lock)
    condition = _condition(expect, token)
    body: Json = {"register": _at(engine, name), "write": condition}
    if value is not None:
        body["value"] = value_json(value)
        if ttl is not None:
            body["ttl_ms"] = ms_up(ttl)
    path = "/v1/registers/delete" if value is None else "/v1/registers/store"
    until = engine.loop.time() + PATIENCE
    failures = 0
    while True:
        engine.check_open()
        left = until - engine.loop.time()
        if lock is not None:
            lock.token()  # no longer than the lock is valid
            left = min(left, lock.remaining())
        condition["repeated"] = failures > 0
        try:
            limit = max(0.001, min(left, engine.settings.timeout))
            repeated = failures > 0
            return await engine.ask(
                path, body, lambda answer: outcome(answer, name, token, repeated), limit
            )
        except Unavailable as error:
            failures += 1 if error.maybe_done or failures else 0
            pause = backoff(failures or 1)
            if engine.loop.time() + pause >= until:
                raise
            engine.retrying(error)
            await asyncio.sleep(pause)


def _at(engine: Engine, name: str) -> Json:
    return {"namespace": engine.settings.namespace, "name": name}


def _fence(engine: Engine, lock: Record) -> int:
    token = lock.token()
    if lock.claim.mode != "exclusive":
        raise Invalid(
            "only a lock that is held alone fences: readers, and holders of permits, may work "
            "beside each other whatever their tokens"
        )
    if lock.claim.namespace != engine.settings.namespace:
        raise Invalid("this lock is of another namespace than the register: tokens do not compare")
    return token


def _condition(expect: Precondition, token: Optional[int]) -> Json:
    condition: Json = {"write_id": random_id()}
    if expect is None:
        condition["absent"] = True
    elif isinstance(expect, Entry):
        condition["version"] = str(expect.version)
    elif isinstance(expect, int):
        condition["version"] = str(expect)
    if token is not None:
        condition["token"] = str(token)
    return condition
