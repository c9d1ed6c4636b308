"""What can be seen of locks, and breaking one. Reading changes nothing, so it is repeated after a
failure that may pass."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Dict, List, Optional, TypeVar

from ._engine import Engine
from ._errors import Unavailable
from ._record import backoff
from ._wire import LONGEST_WAIT, Json, LockState, ClaimState, holder_json, lock_state, page, seen
from ._wire import was_found

T = TypeVar("T")

PATIENCE = 5.0
"""How long a look is repeated that fails, in seconds: a restart of a server is over by then."""


async def repeat(engine: Engine, path: str, body: Json, read: Callable[[Json], T]) -> T:
    """Asks until there is an answer or an error that stays, for some seconds."""
    until = engine.loop.time() + PATIENCE
    failures = 0
    while True:
        engine.check_open()
        try:
            return await engine.ask(path, body, read)
        except Unavailable as error:
            failures += 1
            pause = backoff(failures)
            if engine.loop.time() + pause >= until:
                raise
            engine.retrying(error)
            await asyncio.sleep(pause)


async def poll(engine: Engine, path: str, body: Json, read: Callable[[Json], T]) -> T:
    """A request whose answer may wait; goes on trying while the service is out of reach."""
    failures = 0
    while True:
        engine.check_open()
        try:
            asked = dict(body, wait_ms=int(LONGEST_WAIT * 1000))
            return await engine.ask(path, asked, read, LONGEST_WAIT + engine.settings.timeout)
        except Unavailable as error:
            failures += 1
            await engine.pause(error, failures)


def key(engine: Engine, name: str, space: str) -> Dict[str, Any]:
    return {"namespace": engine.settings.namespace, "name": name, "space": space}


async def inspect(engine: Engine, name: str, space: str) -> LockState:
    return await repeat(engine, "/v1/inspect", key(engine, name, space), lock_state)


async def changed(engine: Engine, before: LockState) -> LockState:
    """The lock once its line is not the one of ``before``."""
    known = [seen(it) for it in before.queue]
    while True:
        body = {"key": key(engine, before.name, before.space), "known": known}
        now = await poll(engine, "/v1/changed", body, lock_state)
        if [seen(it) for it in now.queue] != known:
            return now


async def list_locks(engine: Engine, names: str) -> List[LockState]:
    """All locks and semaphores in use whose names begin with ``names``."""
    found: List[LockState] = []
    after: Optional[str] = None
    while True:
        body: Json = {"namespace": engine.settings.namespace, "names": names}
        if after is not None:
            body["after"] = after
        more, after = await repeat(engine, "/v1/list", body, page)
        found.extend(more)
        if after is None:
            return found


async def break_lock(
    engine: Engine, name: str, space: str, token: int, force: bool, reason: Optional[str]
) -> bool:
    body: Json = {
        "key": key(engine, name, space),
        "token": str(token),
        "force": force,
        "by": holder_json(engine.holder),
    }
    if reason is not None:
        body["reason"] = reason
    return await engine.ask("/v1/break", body, was_found)


async def available(engine: Engine, name: str, limit: int) -> int:
    """How many permits of a semaphore are not out."""
    state = await inspect(engine, name, "semaphore")
    out = sum(it.permits or 0 for it in state.holders)
    limits = [it.limit for it in state.queue if it.limit is not None]
    return max(0, (limits[0] if limits else limit) - out)


def leader(state: LockState) -> Optional[ClaimState]:
    """The claim that holds a lock alone."""
    alone = [it for it in state.holders if it.mode == "exclusive"]
    return alone[0] if alone else None
