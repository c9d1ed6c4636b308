"""The end of an interpreter, and of an event loop, at the wrong moment."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lockkit
from conftest import Connect
from lockkit import aio
from server import PATIENCE, Server
from waiting import until

BEGIN = """
import asyncio, contextlib, sys, threading
import lockkit
from lockkit import aio
url = sys.argv[1]
"""

ENDS = {
    "a handle that is entered": """
locks = lockkit.connect(url, ttl=3)
handle = locks.mutex("a")
stack = contextlib.ExitStack()
stack.enter_context(handle)
""",
    "a generator in the middle": """
locks = lockkit.connect(url, ttl=3)
handle = locks.mutex("a")
def dependency():
    with handle as lock:
        yield lock
it = dependency()
next(it)
""",
    "another thread in a block": """
locks = lockkit.connect(url, ttl=3)
begun = threading.Event()
def work():
    with locks.mutex("a"):
        begun.set()
        threading.Event().wait()
threading.Thread(target=work, daemon=True).start()
begun.wait()
""",
    "another thread that waits": """
locks = lockkit.connect(url, ttl=3, wait_ttl=3)
lock = locks.mutex("a").lock()
def wait():
    with contextlib.suppress(lockkit.Closed):
        locks.mutex("a").lock()
threading.Thread(target=wait, daemon=True).start()
while not locks.inspect("a").waiters:
    pass
""",
    "a lock whose loss calls something": """
locks = lockkit.connect(url, ttl=3600)
held = [locks.mutex(name).lock() for name in "ab"]
for lock in held:
    lock.on_lost(lambda reason: None)
""",
    "an exit in a block": """
with lockkit.connect(url, ttl=3).mutex("a"):
    sys.exit(0)
""",
    "a task in a block": """
async def main():
    locks = aio.connect(url, ttl=3)
    begun = asyncio.Event()
    async def work():
        async with locks.mutex("a"):
            begun.set()
            await asyncio.Event().wait()
    task = asyncio.ensure_future(work())
    await begun.wait()
asyncio.run(main())
""",
    "an async generator in the middle": """
async def main():
    locks = aio.connect(url, ttl=3)
    handle = locks.mutex("a")
    async def numbers():
        async with handle:
            yield 1
            yield 2
    it = numbers()
    await it.__anext__()
asyncio.run(main())
""",
    "a loop that is closed without a word": """
loop = asyncio.new_event_loop()
async def main():
    handle = aio.connect(url, ttl=3).mutex("a")
    return await handle.lock()
lock = loop.run_until_complete(main())
loop.close()
del lock
""",
}


@pytest.mark.parametrize("program", ENDS.values(), ids=ENDS)
def test_the_end_of_a_program_leaves_no_lock(connect: Connect, server: Server, program: str) -> None:
    watching = connect()
    process = subprocess.run(
        [sys.executable, "-c", BEGIN + program, server.url],
        env={**os.environ, "PYTHONPATH": str(Path(lockkit.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert "Traceback" not in process.stderr
    until(lambda: not watching.inspect("a").queue)


def test_a_guard_whose_loop_was_closed_is_lost_with_its_lease(
    connect: Connect, server: Server
) -> None:
    watching = connect()
    loop = asyncio.new_event_loop()

    async def main() -> aio.Guard:
        return await aio.connect(server.url, ttl=1).mutex("a").lock()

    lock = loop.run_until_complete(main())
    loop.close()
    until(lambda: not watching.inspect("a").queue)
    assert not lock.is_valid() and lock.lost.reason is lockkit.LossReason.EXPIRED
