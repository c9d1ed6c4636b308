"""The event loop in a thread in which locks of programs with threads are kept."""

from __future__ import annotations

import asyncio
import atexit
import functools
import threading
import weakref
from concurrent.futures import Future
from typing import Any, Callable, Coroutine, Optional, TypeVar

from .. import _forks
from .._clock import Clock
from .._engine import Engine
from .._errors import Closed
from .._settings import Settings

T = TypeVar("T")

AT_EXIT = 2.0
"""How long a program that ends waits for its releases, in seconds."""


class EngineThread:
    """An engine, and the thread that it runs in. The thread starts with the first request. It does
    not keep the program from ending, and then gives back what is held. A child that was forked
    starts an engine and a thread of its own."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self._clock = clock
        self._process = _forks.this_process()
        # Reentrant: a signal handler may use locks while its own thread has it.
        self._mutex = threading.RLock()
        self._engine: Optional[Engine] = None
        self._thread: Optional[threading.Thread] = None
        self._closed = False
        self._at_exit = functools.partial(_close, weakref.ref(self))
        _forks.tell(self)

    def forked(self) -> None:
        """Begins anew, in a child."""
        _forks.keep(self._engine, self._thread)
        atexit.unregister(self._at_exit)
        self._process = _forks.this_process()
        self._mutex = threading.RLock()
        self._engine = self._thread = None

    def run(self, work: Callable[[Engine], Coroutine[Any, Any, T]]) -> T:
        """Runs ``work`` in the thread, and waits for its result. An interrupt of the caller, such
        as Ctrl-C, cancels it."""
        engine = self._started()
        if threading.current_thread() is self._thread:
            raise RuntimeError("the thread that keeps locks cannot wait for one")
        future: "Future[T]" = asyncio.run_coroutine_threadsafe(work(engine), engine.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self, limit: float) -> None:
        """Gives back what is held, and ends the thread."""
        with self._mutex:
            engine, thread = self._engine, self._thread
            if self._closed or self._process != _forks.this_process():
                return
            self._closed = True
        atexit.unregister(self._at_exit)
        if engine is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(engine.close(limit), engine.loop).result()
        engine.loop.call_soon_threadsafe(engine.loop.stop)
        thread.join()

    def _started(self) -> Engine:
        # Only C code forks without a word. Before the mutex, which another thread may have held.
        if self._process != _forks.this_process():
            raise Closed("this process is a fork: connect again in it")
        with self._mutex:
            if self._closed:
                raise Closed
            if self._engine is None:
                started: "Future[Engine]" = Future()
                what = (self.settings, self._clock, started)
                thread = threading.Thread(target=_main, args=what, name="lockkit", daemon=True)
                thread.start()
                engine = started.result()
                if self._engine is not None:  # a signal handler has started another one
                    engine.loop.call_soon_threadsafe(engine.loop.stop)
                    return self._engine
                self._engine, self._thread = engine, thread
                atexit.register(self._at_exit)
            return self._engine

    def __del__(self) -> None:
        # Nothing refers to its locks any more. This may be the thread itself: it cannot be joined.
        engine = self._engine
        if engine is None or self._closed or engine.is_foreign():
            return
        atexit.unregister(self._at_exit)
        try:
            engine.loop.call_soon_threadsafe(_end, engine)
        except RuntimeError:
            pass  # The loop has ended.


def _close(thread: "weakref.ref[EngineThread]") -> None:
    it = thread()
    if it is not None:
        it.close(AT_EXIT)


def _end(engine: Engine) -> None:
    closing = engine.loop.create_task(engine.close(AT_EXIT))
    closing.add_done_callback(lambda _: engine.loop.stop())


def _main(settings: Settings, clock: Clock, started: "Future[Engine]") -> None:
    """What the thread does. It does not refer to the ``EngineThread``, which may go."""

    async def begin() -> Engine:
        return Engine(settings, clock)

    try:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        started.set_result(loop.run_until_complete(begin()))
    except BaseException as error:  # there may be too many open files
        started.set_exception(error)
        return
    del started
    loop.run_forever()
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.close()
