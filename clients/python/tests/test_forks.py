"""Connection objects that were made before a fork, as an application server makes them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Callable, List

import lockkit
from conftest import Connect
from lockkit import aio
from server import PATIENCE, Server


def in_child(work: Callable[[], object]) -> str:
    """What this gives, or raises, in a child that was forked here."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(int(PATIENCE))
        try:
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writes, said.encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    assert said, "the child hung or died"
    return said


def holder(locks: lockkit.Locks) -> int:
    """The process that holds the lock, as others see it."""
    with locks.mutex("a"):
        (standing,) = locks.inspect("a").queue
        return standing.holder.pid


def test_a_child_uses_what_was_connected_before_the_fork(connect: Connect) -> None:
    unused, used = connect(), connect()
    assert holder(used) == os.getpid()
    held = used.mutex("b").lock()
    for locks in (unused, used):
        assert in_child(lambda: holder(locks) == os.getpid()) == "True"
    # The parent's connections and its thread are as they were.
    held.verify()
    assert held.is_valid() and holder(used) == os.getpid()


def test_a_child_of_a_child_does_too(connect: Connect) -> None:
    locks = connect()
    assert holder(locks) == os.getpid()

    def child() -> str:
        return f"{holder(locks) == os.getpid()} {in_child(lambda: holder(locks) == os.getpid())}"

    assert in_child(child) == "True True"


def test_what_is_asked_of_a_guard_of_the_parent_reaches_nobody(connect: Connect) -> None:
    locks = connect()
    lock = locks.rwlock("a").write()
    said: List[str] = []

    def child() -> str:
        told: "queue.Queue[lockkit.LossReason]" = queue.Queue()
        lock.on_lost(told.put)
        said.append(told.get(timeout=PATIENCE).name)

        def put() -> None:
            locks.register("cursor").put("1", lock=lock)

        asks: List[Callable[[], None]] = [lock.verify, lock.downgrade, lock.release, put]
        for ask in asks:
            try:
                ask()
            except lockkit.LockLost as error:
                said.append(error.reason.name)
        said.append(str(lock.lost.wait(0)))
        assert locks._thread._engine is None, "an engine has been asked"
        return " ".join(said)

    assert in_child(child) == "FORKED FORKED FORKED FORKED FORKED True"
    lock.verify()


def test_closing_in_a_child_waits_for_no_thread_of_the_parent(connect: Connect) -> None:
    locks = connect()
    lock = locks.mutex("a").lock()
    taken, go_on = threading.Event(), threading.Event()

    def keep() -> None:
        with locks._thread._mutex:
            taken.set()
            go_on.wait(PATIENCE)

    keeper = threading.Thread(target=keep)
    keeper.start()
    assert taken.wait(PATIENCE)

    def child() -> str:
        locks.close()
        try:
            locks.mutex("b").try_lock()
        except lockkit.Closed:
            return "closed"
        return "open"

    assert in_child(child) == "closed"
    go_on.set()
    keeper.join()
    lock.verify()


PROGRAM = """
import os, sys, warnings, lockkit
# Python 3.12 and later warn of any fork beside another thread.
warnings.filterwarnings("ignore", "This process", DeprecationWarning)
locks = lockkit.connect(sys.argv[1])
lock = locks.mutex("a").lock()
child = os.fork()
if child == 0:
    # An ordinary end, with all that Python does then.
    with locks.mutex("b"):
        sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
lock.verify()
with locks.mutex("b"):
    print("held")
"""


def test_the_end_of_a_child_takes_nothing_from_its_parent(server: Server) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(lockkit.__file__).parents[1])}
    words = [sys.executable, "-c", PROGRAM, server.url]
    process = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, "held\n", "")


LOCKS: List[lockkit.Locks] = []


def work(number: int) -> bool:
    with LOCKS[-1].mutex(f"job/{number % 3}") as lock:
        return lock.is_valid()


def test_workers_of_a_pool_share_what_the_module_connected(connect: Connect) -> None:
    LOCKS.append(connect())
    with LOCKS[-1].mutex("job/0"):
        pass
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert all(pool.map(work, range(40)))


async def aio_holder(locks: aio.Locks) -> int:
    async with locks.mutex("a"):
        (standing,) = (await locks.inspect("a")).queue
        return standing.holder.pid


def test_a_child_uses_asyncio_with_what_was_connected_before(server: Server) -> None:
    locks = aio.connect(server.url)

    def child() -> bool:
        async def main() -> bool:
            try:
                return await aio_holder(locks) == os.getpid()
            finally:
                await locks.close()

        return asyncio.run(main())

    assert in_child(child) == "True"


def test_a_child_that_is_forked_in_a_running_loop_uses_a_loop_of_its_own(server: Server) -> None:
    async def in_a_child(locks: aio.Locks, lock: aio.Guard) -> str:
        said: List[str] = []
        told: "asyncio.Queue[lockkit.LossReason]" = asyncio.Queue()
        lock.on_lost(told.put_nowait)
        said.append((await asyncio.wait_for(told.get(), PATIENCE)).name)
        for ask in (lock.verify, lock.downgrade, lock.release):
            try:
                await ask()
            except lockkit.LockLost as error:
                said.append(error.reason.name)
        said.append(str(await lock.lost.wait()))
        said.append(str(await aio_holder(locks) == os.getpid()))
        await locks.close()
        return " ".join(said)

    async def main() -> None:
        async with aio.connect(server.url) as locks:
            lock = await locks.rwlock("b").write()
            said = in_child(lambda: asyncio.run(in_a_child(locks, lock)))
            assert said == "FORKED FORKED FORKED FORKED LossReason.FORKED True"
            # The parent hears what comes to it, on its old connection and on new ones.
            await lock.verify()
            async with locks.mutex("c") as other:
                assert other.is_valid()
            await lock.release()

    asyncio.run(main())
