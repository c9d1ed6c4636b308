"""Clients of a storm (``lockkit-lab``): they take locks in every form, work under them on a register
that checks tokens, give them back in every way, and write down all of it for the judge.

It is told what the storm's clients in Rust are told, and writes what they write.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import lockkit
from lockkit import aio


class Orders(NamedTuple):
    """The arguments after the URL, in their order. Durations are in milliseconds."""

    seed: int
    lasts: int
    client: int
    tasks: int
    locks: int
    ttl: int
    wait_ttl: int
    registers: str
    folder: str


def orders(words: List[str]) -> Orders:
    return Orders(*(int(word) for word in words[:7]), *words[7:9])  # type: ignore[arg-type]


def now() -> int:
    """Nanoseconds since boot, which all processes of the storm share."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Recorder:
    """Writes events as JSON lines, each at once, so that they survive the process."""

    def __init__(self, folder: str, client: int) -> None:
        self._client = client
        self._file = open(Path(folder) / f"client-{client}.jsonl", "ab", buffering=0)

    def record(self, what: str, **fields: Any) -> None:
        event = {"at": now(), "client": self._client, "what": what, **fields}
        self._file.write(json.dumps(event).encode() + b"\n")


class Registers:
    """The registers that locks protect, in the storm's own process."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        stream = socket.create_connection((host, int(port)))
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = stream.makefile("rwb")

    def apply(self, register: str, token: int, write: Optional[int]) -> Dict[str, Dict[str, int]]:
        """Writes, or reads when there is nothing to write."""
        question = {"register": register, "token": token, "write": write}
        self._lines.write(json.dumps(question).encode() + b"\n")
        self._lines.flush()
        answer: Dict[str, Dict[str, int]] = json.loads(self._lines.readline())
        return answer


class Client:
    def __init__(self, locks: aio.Locks, told: Orders, number: int) -> None:
        self._locks = locks
        self._told = told
        self._recorder = Recorder(told.folder, number)
        self._registers = Registers(told.registers)
        self._random = random.Random(f"{told.seed} {number}")
        self._op = 0

    def _next_op(self) -> int:
        self._op += 1
        return self._op

    async def work(self, until: float) -> None:
        while time.monotonic() < until:
            await self._turn()
            await asyncio.sleep(self._random.uniform(0, 0.003))

    async def _turn(self) -> None:
        draw = self._random
        which = draw.randrange(10)
        how: Any = "exclusive" if which < 6 else "shared" if which < 8 else None
        permits = draw.randint(1, 3)
        if how is None:
            how = {"permits": [permits, 4]}
        space = "semaphore" if isinstance(how, dict) else "lock"
        name = f"{space}/{draw.randrange(self._told.locks)}"
        op = self._next_op()
        self._recorder.record("asked", op=op, lock=name, how=how)
        longest = max(self._told.ttl, self._told.wait_ttl) * 3 / 1000
        which = draw.randrange(10)
        limit = 0.0 if which < 2 else draw.uniform(0.001, 0.06) if which < 4 else longest
        # Which ttl is for which is left to chance: a claim changes from one to the other.
        hold, wait = draw.sample([self._told.ttl / 1000, self._told.wait_ttl / 1000], 2)
        try:
            guard = await self._ask(name, how, permits, hold, wait, limit)
        except lockkit.Error as error:
            return self._recorder.record("failed", op=op, error=str(error))
        if guard is None:
            return self._recorder.record("refused", op=op)
        await self._hold(op, guard, name, how == "exclusive", hold)

    async def _ask(
        self, name: str, how: Any, permits: int, hold: float, wait: float, limit: float
    ) -> Optional[aio.Guard]:
        if how == "exclusive":
            mutex = self._locks.mutex(name, ttl=hold, wait_ttl=wait)
            return await (mutex.try_lock_for(limit) if limit else mutex.try_lock())
        if how == "shared":
            rwlock = self._locks.rwlock(name, ttl=hold, wait_ttl=wait)
            return await (rwlock.try_read_for(limit) if limit else rwlock.try_read())
        semaphore = self._locks.semaphore(name, 4, ttl=hold, wait_ttl=wait)
        if limit:
            return await semaphore.try_acquire_for(limit, permits)
        return await semaphore.try_acquire(permits)

    async def _hold(
        self, op: int, guard: aio.Guard, name: str, exclusive: bool, ttl: float
    ) -> None:
        _, valid_until = validity(guard)
        try:
            token = guard.token
        except lockkit.Error:
            return self._recorder.record("failed", op=op, error="lost at once")
        since = max(0, valid_until - int(ttl * 1e9))
        self._recorder.record(
            "granted", op=op, token=token, since=since, valid_until=valid_until
        )
        for _ in range(self._random.randint(1, 3)):
            if exclusive and not self._update(name, token):
                break  # refused: a newer holder was here
            pause = self._random.uniform(0, 0.002)
            if self._random.randrange(100) == 0:
                # It needs to be renewed, and outlasts the one ttl before the other is over.
                shorter = min(self._told.ttl, self._told.wait_ttl) / 1000
                pause = shorter * self._random.uniform(0.9, 1.9)
            try:
                reason = await asyncio.wait_for(guard.lost.wait(), pause)
                assert reason is not None, "nobody else releases it"
                return self._recorder.record("ended", op=op, lost=reason.value)
            except asyncio.TimeoutError:
                pass
            valid, valid_until = validity(guard)
            if valid:
                self._recorder.record("valid", op=op, valid_until=valid_until)
        self._recorder.record("ended", op=op, lost=None)
        if self._random.randrange(4) == 0:
            return  # nothing refers to the guard any more
        try:
            await guard.release()
        except lockkit.Error:
            pass

    def _update(self, register: str, token: int) -> bool:
        """Adds one to what the register says, as work under a lock does. The token protects it."""
        answer = self._apply(register, token, None)
        if "done" not in answer:
            return False
        return "done" in self._apply(register, token, answer["done"]["value"] + 1)

    def _apply(
        self, register: str, token: int, write: Optional[int]
    ) -> Dict[str, Dict[str, int]]:
        op = self._next_op()
        self._recorder.record(
            "register_asked", op=op, register=register, token=token, write=write
        )
        answer = self._registers.apply(register, token, write)
        if "done" in answer:
            self._recorder.record("register_done", op=op, value=answer["done"]["value"])
        else:
            self._recorder.record("register_stale", op=op, highest=answer["stale"]["highest"])
        return answer


def validity(guard: aio.Guard) -> Tuple[bool, int]:
    """Whether it is valid, and until when it will say so at least, if nothing changes."""
    at, remaining = now(), guard.remaining()
    return remaining > 0, at + int(remaining * 1e9)


async def main(url: str, told: Orders) -> None:
    until = time.monotonic() + told.lasts / 1000
    locks = aio.connect(url, ttl=told.ttl / 1000, wait_ttl=told.wait_ttl / 1000)
    numbers = range(told.client, told.client + told.tasks)
    await asyncio.gather(*(Client(locks, told, number).work(until) for number in numbers))
    await locks.close(max(told.ttl, told.wait_ttl) * 2 / 1000)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], orders(sys.argv[2:])))
