"""The engine of a connection object, which begins in the event loop that uses it first."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Coroutine, Optional, TypeVar

from .. import _forks
from .._clock import Clock
from .._engine import Engine
from .._errors import Closed
from .._settings import Settings

T = TypeVar("T")


class EngineSlot:
    """An engine, once there is an event loop for it. A child that was forked gets another one, in an
    event loop of its own."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self._clock = clock
        self._engine: Optional[Engine] = None
        self._inherited: Optional[asyncio.AbstractEventLoop] = None
        self._closed = False
        _forks.tell(self)

    def forked(self) -> None:
        """Begins anew, in a child."""
        _forks.keep(self._engine)
        if self._engine is not None:
            self._inherited, self._engine = self._engine.loop, None

    def engine(self) -> Engine:
        """The engine; raises ``Closed`` in another event loop than the first."""
        if self._closed:
            raise Closed
        if self._engine is None:
            if self._inherited is asyncio.get_running_loop():
                raise Closed("this event loop is the parent's: use a new one in a fork")
            self._engine = Engine(self.settings, self._clock)
        self._engine.check_open()
        if self._engine.loop is not asyncio.get_running_loop():
            raise Closed("these locks belong to another event loop: connect again in this one")
        return self._engine

    async def run(self, work: Callable[[Engine], Coroutine[Any, Any, T]]) -> T:
        """Runs ``work`` with it."""
        return await work(self.engine())

    async def close(self, limit: float) -> None:
        """Gives back what is held."""
        engine, self._closed = self._engine, True
        if engine is not None:
            await engine.close(limit)
