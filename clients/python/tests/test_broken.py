"""A graceful break: the claim stays in the queue until its holder gives it back, or its lease ends."""

from __future__ import annotations

import asyncio
import gc
from typing import Callable, Dict, List

import pytest

import lockkit
from conftest import Connect
from lockkit import aio
from moved import MovedClock
from proxy import Proxy
from server import PATIENCE, Server
from test_aio import until as until_async
from waiting import begin, until

HOUR = 3600.0


class Broken:
    """A lock with a ttl of an hour that was broken without force, and has noticed."""

    def __init__(self, connect: Connect, proxy: Proxy, lock_delay: float = 0) -> None:
        clock = MovedClock()
        self.locks = connect(
            proxy.url, ttl=HOUR, wait_ttl=HOUR, lock_delay=lock_delay, clock=clock
        )
        self.others = connect()
        self.guards = [self.locks.mutex("a").lock()]
        lost = self.guards[0].lost
        assert self.others.break_lock("a", self.guards[0].token)
        clock.ahead += 0.4 * HOUR  # a renewal is due
        assert lost.wait(PATIENCE) and lost.reason is lockkit.LossReason.BROKEN
        # It excludes others for as long as its holder may not have noticed.
        (holder,) = self.others.inspect("a").holders
        assert holder.broken and proxy.asked("/v1/release") == []

    def release(self) -> None:
        for _ in range(2):
            with pytest.raises(lockkit.LockLost):
                self.guards[0].release()

    def drop(self) -> None:
        self.guards.clear()
        gc.collect()

    def close(self) -> None:
        self.locks.close()


WAYS: Dict[str, Callable[[Broken], None]] = {
    "released": Broken.release,
    "dropped": Broken.drop,
    "closed": Broken.close,
}


@pytest.mark.parametrize("end", WAYS.values(), ids=WAYS)
def test_a_lock_that_was_broken_is_given_back_when_its_holder_is_done(
    connect: Connect, proxy: Proxy, end: Callable[[Broken], None]
) -> None:
    broken = Broken(connect, proxy)
    end(broken)
    until(lambda: not broken.others.inspect("a").queue)
    broken.release() if broken.guards else broken.close()
    assert len(proxy.asked("/v1/release")) == 1


@pytest.mark.parametrize("end", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("lost", [0, 1])
def test_one_with_a_lock_delay_is_left_to_its_lease(
    connect: Connect, proxy: Proxy, end: Callable[[Broken], None], lost: int
) -> None:
    proxy.lose("/v1/acquire", lost)
    broken = Broken(connect, proxy, lock_delay=1)
    end(broken)
    broken.close()
    assert proxy.asked("/v1/release") == [] and len(broken.others.inspect("a").queue) == 1


def test_one_whose_acquire_had_no_answer_excludes_others_until_its_holder_is_done(
    connect: Connect, proxy: Proxy
) -> None:
    proxy.lose("/v1/acquire")
    broken = Broken(connect, proxy)
    with pytest.raises(lockkit.LockLost):
        broken.guards[0].verify()
    assert proxy.asked("/v1/release") == []
    broken.release()
    # Again and again: the acquire might still arrive.
    until(lambda: len(proxy.asked("/v1/release")) > 2)
    assert not broken.others.inspect("a").queue


def test_a_release_that_learns_of_the_break_gives_the_lock_back(
    connect: Connect, proxy: Proxy
) -> None:
    locks, others = connect(proxy.url, ttl=HOUR), connect()
    lock = locks.mutex("a", at_least=HOUR).lock()
    others.break_lock("a", lock.token)
    with pytest.raises(lockkit.LockLost) as error:
        lock.release()
    assert error.value.reason is lockkit.LossReason.BROKEN
    until(lambda: not others.inspect("a").queue)


def test_a_waiter_that_was_broken_leaves_the_queue(connect: Connect) -> None:
    holder = connect()
    with holder.mutex("a"):
        waiting = begin(connect(wait_ttl=HOUR).mutex("a").lock)
        until(lambda: holder.inspect("a").waiters)
        holder.break_lock("a", holder.inspect("a").waiters[0].token)
        with pytest.raises(lockkit.LockLost):
            waiting.result(PATIENCE)
        until(lambda: not holder.inspect("a").waiters)


def test_work_that_is_cancelled_by_a_break_gives_its_lock_back(server: Server) -> None:
    async def main() -> List[str]:
        said: List[str] = []
        clock = MovedClock()
        async with aio.connect(server.url, ttl=HOUR, clock=clock) as ours:
            async with aio.connect(server.url) as theirs:

                async def work(lock: aio.Guard) -> None:
                    await theirs.break_lock("a", lock.token)
                    clock.ahead += 0.4 * HOUR
                    try:
                        await asyncio.sleep(PATIENCE)
                    except asyncio.CancelledError:
                        said.append("cancelled")
                        assert len((await theirs.inspect("a")).queue) == 1
                        raise

                with pytest.raises(lockkit.LockLost):
                    await ours.mutex("a").run(work)

                async def free() -> bool:
                    return not (await theirs.inspect("a")).queue

                await until_async(free)
        return said

    assert asyncio.run(main()) == ["cancelled"]
