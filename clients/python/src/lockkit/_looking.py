"""What can be seen of locks, and breaking one. Looking disturbs nobody, so it is repeated after a
failure that may pass."""

from __future__ import annotations

import asyncio
from typing import Any, Dict, List, Optional

from ._engine import Engine
from ._errors import Unavailable
from ._record import backoff
from ._wire import LONGEST_WAIT, Json, LockState, Standing, holder_json, lock_state, seen

PATIENCE = 5.0
"""How long a look is repeated that fails, in seconds: a restart of a server is over by then."""


async def repeat(engine: Engine, path: str, body: Json, patience: float = PATIENCE) -> Json:
    """Asks until there is an answer or an error that stays, for so many seconds."""
    until = engine.loop.time() + patience
    failures = 0
    while True:
        engine.check_open()
        try:
            return await engine.ask(path, body)
        except Unavailable:
            failures += 1
            pause = backoff(failures)
            if engine.loop.time() + pause >= until:
                raise
            await asyncio.sleep(pause)


async def poll(engine: Engine, path: str, body: Json) -> Json:
    """A request whose answer may wait; goes on trying while the service is out of reach."""
    failures = 0
    while True:
        engine.check_open()
        try:
            asked = dict(body, wait_ms=int(LONGEST_WAIT * 1000))
            return await engine.ask(path, asked, LONGEST_WAIT + engine.settings.timeout)
        except Unavailable:
            failures += 1
            await asyncio.sleep(backoff(failures))


def key(engine: Engine, name: str, space: str) -> Dict[str, Any]:
    return {"prefix": engine.settings.prefix, "name": name, "space": space}


async def inspect(engine: Engine, name: str, space: str) -> LockState:
    return lock_state(await repeat(engine, "/v1/inspect", key(engine, name, space)))


async def changed(engine: Engine, before: LockState) -> LockState:
    """The lock once its line is not the one of ``before``."""
    told = [seen(it) for it in before.line]
    while True:
        body = {"key": key(engine, before.name, before.space), "seen": told}
        now = lock_state(await poll(engine, "/v1/changed", body))
        if [seen(it) for it in now.line] != told:
            return now


async def list_locks(engine: Engine, names: str) -> List[LockState]:
    """All locks and semaphores in use whose names begin with ``names``."""
    found: List[LockState] = []
    after: Optional[str] = None
    while True:
        body: Json = {"prefix": engine.settings.prefix, "names": names}
        if after is not None:
            body["after"] = after
        page = await repeat(engine, "/v1/list", body)
        found.extend(lock_state(it) for it in page["locks"])
        after = page.get("next")
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
    return bool((await engine.ask("/v1/break", body))["found"])


async def available(engine: Engine, name: str, limit: int) -> int:
    """How many permits of a semaphore are not out."""
    state = await inspect(engine, name, "semaphore")
    out = sum(it.permits or 0 for it in state.holders)
    limits = [it.limit for it in state.line if it.limit is not None]
    return max(0, (limits[0] if limits else limit) - out)


def leader(state: LockState) -> Optional[Standing]:
    """The claim that holds a lock alone."""
    alone = [it for it in state.holders if it.mode == "exclusive"]
    return alone[0] if alone else None
