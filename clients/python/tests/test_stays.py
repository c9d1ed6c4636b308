"""Slots, and locks that stay held or closed for longer than they are used."""

from __future__ import annotations

import asyncio
import time
from typing import List, Set

import pytest

import lockkit
from conftest import Connect
from lockkit import aio
from moved import MovedClock
from proxy import Proxy
from server import PATIENCE, Server
from waiting import begin, until


def free_after(locks: lockkit.Locks, name: str, since: float) -> float:
    until(lambda: not locks.inspect(name).queue)
    return time.monotonic() - since


def test_a_slot_is_the_lowest_free_number_and_its_token_grows(connect: Connect) -> None:
    ours, theirs = connect(), connect()
    held = [ours.slots("gpu", 3).acquire() for _ in range(3)]
    assert [it.number for it in held] == [0, 1, 2]
    assert held[1].name == "gpu" and held[1].is_valid() and held[1].remaining() > 20
    assert theirs.slots("gpu", 3).try_acquire() is None
    assert theirs.slots("gpu", 3).try_acquire_for(0.1) is None
    token = held[1].token
    held[1].release()
    held[1].release()
    with theirs.slots("gpu", 3).acquire() as again:
        assert again.number == 1 and again.token > token
        assert theirs.inspect("lockkit.slot/gpu/1").holders[0].token == again.token
    for it in (held[0], held[2]):
        it.release()
    assert not ours.inspect("gpu", "semaphore").queue
    with pytest.raises(lockkit.LockReleased):
        held[0].token
    del held


def test_no_two_of_many_workers_hold_one_number(connect: Connect) -> None:
    inside: Set[int] = set()
    broken: List[str] = []

    def work(locks: lockkit.Locks) -> None:
        for _ in range(5):
            with locks.slots("gpu", 2).acquire() as slot:
                if slot.number in inside or len(inside) >= 2:
                    broken.append(f"two in {slot.number}")
                inside.add(slot.number)
                time.sleep(0.002)
                inside.discard(slot.number)

    workers = [begin(lambda locks=connect(): work(locks)) for _ in range(5)]  # type: ignore[misc]
    for worker in workers:
        worker.result(PATIENCE)
    assert not broken


def test_the_loss_of_the_permit_is_the_slot_s(connect: Connect) -> None:
    ours, theirs = connect(ttl=1), connect()
    slot = ours.slots("gpu", 2).acquire()
    with pytest.raises(lockkit.LimitMismatch):
        theirs.slots("gpu", 3).try_acquire()
    permit = theirs.inspect("gpu", "semaphore").holders[0]
    assert theirs.break_lock("gpu", permit.token, space="semaphore", force=True)
    until(lambda: slot.loss is lockkit.LossReason.BROKEN)
    assert not slot.is_valid()
    with pytest.raises(lockkit.LockLost):
        slot.release()
    until(lambda: not theirs.inspect("lockkit.slot/gpu/0").queue)


def test_what_cannot_be_slots_is_refused(locks: lockkit.Locks) -> None:
    for name, slots in (("x" * 481, 2), ("gpu", 0)):
        with pytest.raises(lockkit.Invalid):
            locks.slots(name, slots)
    with pytest.raises(lockkit.Invalid):
        locks.mutex("a", at_least=5, max_hold=4)


def test_a_slot_with_asyncio_cancels_its_work_when_it_is_lost(server: Server) -> None:
    async def main() -> None:
        async with aio.connect(server.url, ttl=1) as locks:
            async with aio.connect(server.url) as theirs:

                async def work(slot: aio.SlotGuard) -> None:
                    state = await theirs.inspect("gpu", "semaphore")
                    token = state.holders[0].token
                    await theirs.break_lock("gpu", token, space="semaphore", force=True)
                    await asyncio.sleep(PATIENCE)

                with pytest.raises(lockkit.LockLost):
                    await locks.slots("gpu", 1).run(work)
                slot = await locks.slots("gpu", 1).acquire()
                assert slot.number == 0
                await slot.release()

    asyncio.run(main())


def test_a_released_lock_stays_for_its_least_hold(connect: Connect) -> None:
    locks = connect()
    asked = time.monotonic()
    lock = locks.mutex("a", at_least=2).lock()
    granted = time.monotonic()
    lock.release()
    assert time.monotonic() - granted < 1.5, "the rest is left to the backend"
    assert locks.mutex("a").try_lock() is None
    assert free_after(locks, "a", asked) >= 2


def test_a_lock_whose_lease_is_being_shortened_is_not_valid_any_more(
    connect: Connect, proxy: Proxy
) -> None:
    locks, others = connect(proxy.url), connect()
    lock = locks.mutex("a", at_least=1).lock()
    rule = proxy.hold("/v1/shorten")
    released = begin(lock.release)
    assert rule.reached.wait(PATIENCE)
    # The backend ends its lease at the end of the second, whatever the answer does.
    assert not lock.is_valid()
    with pytest.raises(lockkit.LockReleased):
        lock.token
    until(lambda: not others.inspect("a").queue)
    rule.go_on.set()
    released.result(PATIENCE)
    assert not proxy.asked("/v1/release")


def test_a_cancelled_release_leaves_the_least_hold_too(server: Server, proxy: Proxy) -> None:
    async def main() -> None:
        async with aio.connect(proxy.url) as locks, aio.connect(server.url) as others:
            lock = await locks.mutex("a", at_least=2).lock()
            granted = time.monotonic()
            rule = proxy.refuse("/v1/shorten")
            with pytest.raises(lockkit.Unavailable):
                await lock.release()
            assert rule.reached.is_set() and not lock.is_valid()
            while (await others.inspect("a")).queue:
                await asyncio.sleep(0.01)
            assert time.monotonic() - granted >= 2
            again = await locks.mutex("a", at_least=2).lock()
            granted = time.monotonic()
            # One that does not arrive before the lock is to be free.
            late = proxy.delay("/v1/shorten")
            releasing = asyncio.ensure_future(again.release())
            while not late.reached.is_set():
                await asyncio.sleep(0.01)
            releasing.cancel()
            while (await others.inspect("a")).queue:
                await asyncio.sleep(0.01)
            assert 2 <= time.monotonic() - granted < 20

    asyncio.run(main())


def test_a_dropped_lock_and_a_closed_connection_leave_it_too(connect: Connect) -> None:
    locks, others = connect(), connect()
    asked = time.monotonic()
    lock = locks.mutex("a", at_least=2).lock()
    del lock
    assert free_after(locks, "a", asked) >= 2
    asked = time.monotonic()
    kept = locks.mutex("b", at_least=2).lock()
    granted = time.monotonic()
    locks.close()
    assert time.monotonic() - granted < 1.5
    assert free_after(others, "b", asked) >= 2
    assert not kept.is_valid()


def test_a_lost_lock_stays_closed_for_its_lock_delay(connect: Connect, proxy: Proxy) -> None:
    for released in (True, False):
        clock = MovedClock()
        locks, others = connect(proxy.url, ttl=5, lock_delay=3, clock=clock), connect()
        lock = locks.mutex("a").lock()
        shown = others.inspect("a").holders[0]
        assert (shown.ttl, shown.lock_delay, shown.note) == (5, 3, None)
        assert lock.remaining() <= 4.5, "the guard trusts the ttl only"
        began = time.monotonic()
        clock.ahead += 4.6  # as if the process had stood still
        assert lock.lost.is_set()
        if released:
            with pytest.raises(lockkit.LockLost):
                lock.release()
        # By this clock the lease ends 3.4 s from now.
        time.sleep(1.5)
        assert others.inspect("a").holders, "closed"
        free = free_after(others, "a", began)
        assert free >= 3, free
        locks.close()


def test_a_release_opens_in_spite_of_a_lock_delay(locks: lockkit.Locks) -> None:
    locks.mutex("a", lock_delay=60).lock().release()
    assert not locks.inspect("a").queue
