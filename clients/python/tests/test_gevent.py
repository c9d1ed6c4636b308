"""A program whose threads are gevent's: it patches the standard library before it imports anything."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

import lockkit
from server import PATIENCE, Server
from test_docs import SOURCE

PROGRAM = """
from gevent import monkey
monkey.patch_all()

import gc
import sys

import gevent
import lockkit

locks = lockkit.connect(sys.argv[1], ttl=3)
handle = locks.mutex("a")
inside = 0
tokens = []


def in_turn(block):
    global inside
    with block as lock:
        inside += 1
        assert inside == 1
        tokens.append(lock.token)
        gevent.sleep(0.02)
        inside -= 1


jobs = [gevent.spawn(in_turn, handle.lock())]
jobs += [gevent.spawn(lambda: in_turn(handle)) for _ in range(4)]
jobs += [gevent.spawn(lambda: in_turn(handle.lock())) for _ in range(4)]
gevent.joinall(jobs, raise_error=True)
assert len(tokens) == 9 and tokens == sorted(set(tokens))

# Renewed while the others work, and lost when it is broken.
held = handle.lock()
lost = []
held.on_lost(lost.append)
assert handle.try_lock() is None and handle.try_lock_for(0.1) is None
gevent.sleep(4)
assert held.is_valid()
locks.break_lock("a", held.token, force=True)
assert held.lost.wait(60)
while not lost:
    gevent.sleep(0.01)

# A generator that is left early in another greenlet, and a guard that was dropped.
def steps():
    with handle:
        yield
        yield


generator = steps()
next(generator)
gevent.spawn(generator.close).join()
dropped = handle.lock()
del dropped
gc.collect()
while locks.inspect("a").queue:
    gc.collect()
    gevent.sleep(0.01)
kept = handle.lock()  # the end of the program gives it back
print("done")
"""


@pytest.mark.skipif(importlib.util.find_spec("gevent") is None, reason="gevent is not installed")
def test_threads_of_gevent_hold_lose_and_give_back(server: Server) -> None:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.url],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path])},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (process.stdout, process.returncode) == ("done\n", 0), process.stderr
    assert lockkit.connect(server.url).list() == []
