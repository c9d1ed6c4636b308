"""What each primitive does, on a server that answers."""

from __future__ import annotations

import queue
import threading
from datetime import timedelta
from functools import partial
from typing import List

import pytest

import lockkit
from conftest import Connect
from server import PATIENCE
from waiting import begin, until


def test_a_mutex_is_held_by_one_and_its_tokens_grow(connect: Connect) -> None:
    ours, theirs = connect(), connect()
    with ours.mutex("invoice/42") as lock:
        first = lock.token
        assert lock.is_valid() and 26 < lock.remaining() < 27  # less a tenth and 2 ms
        assert theirs.mutex("invoice/42").try_lock() is None
    taken = theirs.mutex("invoice/42").try_lock()
    assert taken is not None and taken.token > first
    taken.release()


def test_waiters_are_served_in_the_order_in_which_they_came(connect: Connect) -> None:
    holder = connect()
    order: List[int] = []

    def wait(number: int, locks: lockkit.Locks) -> None:
        with locks.mutex("line"):
            order.append(number)

    with holder.mutex("line"):
        waits = []
        for number in range(4):
            waits.append(begin(partial(wait, number, connect())))
            until(lambda: len(holder.inspect("line").waiters) == number + 1)
    for it in waits:
        it.result(PATIENCE)
    assert order == [0, 1, 2, 3]


def test_a_wait_that_times_out_leaves_the_line(connect: Connect) -> None:
    ours, theirs = connect(), connect()
    with ours.mutex("a"):
        assert theirs.mutex("a").try_lock_for(timedelta(milliseconds=50)) is None
        until(lambda: not ours.inspect("a").waiters)


def test_a_lock_after_its_release_has_no_token_and_is_released_once(locks: lockkit.Locks) -> None:
    lock = locks.mutex("a").lock()
    lock.release()
    lock.release()
    assert not lock.is_valid() and lock.remaining() == 0 and not lock.lost.is_set()
    with pytest.raises(lockkit.LockReleased):
        lock.token
    assert locks.inspect("a").queue == ()


def test_a_guard_that_nothing_refers_to_is_released(locks: lockkit.Locks) -> None:
    lock = locks.mutex("a").lock()
    assert len(locks.inspect("a").holders) == 1
    del lock
    until(lambda: not locks.inspect("a").queue)


def test_closing_gives_back_what_is_held_and_says_so(connect: Connect) -> None:
    ours, theirs = connect(), connect()
    lock = ours.mutex("a").lock()
    ours.close()
    assert lock.lost.reason is lockkit.LossReason.CLOSED
    with pytest.raises(lockkit.LockLost):
        lock.token
    assert theirs.inspect("a").queue == ()
    with pytest.raises(lockkit.Closed):
        ours.mutex("a").lock()


def test_the_end_of_a_block_says_that_its_connection_was_closed(connect: Connect) -> None:
    locks = connect()
    with pytest.raises(lockkit.LockLost):
        with locks.mutex("a"):
            locks.close()


def test_closing_ends_calls_that_wait_and_leaves_no_claim(connect: Connect) -> None:
    ours, theirs = connect(), connect()
    with ours.mutex("a"):
        waiting = begin(theirs.mutex("a").lock)
        until(lambda: len(ours.inspect("a").waiters) == 1)
        theirs.close()
        with pytest.raises(lockkit.Closed):
            waiting.result(PATIENCE)
        assert not ours.inspect("a").waiters


def test_one_handle_is_used_by_several_threads_and_twice_by_one(locks: lockkit.Locks) -> None:
    handle = locks.mutex("a")
    tokens: List[int] = []

    def work() -> None:
        with handle as lock:
            tokens.append(lock.token)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(set(tokens)) == 5
    work()
    assert tokens[5] == max(tokens)


def test_readers_share_and_a_writer_is_alone(connect: Connect) -> None:
    ours, theirs = connect().rwlock("config"), connect().rwlock("config")
    with ours.read() as first:
        with theirs.read() as second:
            assert first.mode == second.mode == "shared"
            assert theirs.try_write() is None
    with ours.write() as writer:
        assert writer.mode == "exclusive"
        assert theirs.try_read() is None and theirs.try_read_for(0.01) is None


def test_a_downgrade_lets_readers_in_and_keeps_the_token(connect: Connect) -> None:
    ours, theirs = connect().rwlock("config"), connect().rwlock("config")
    with ours.write() as lock:
        token = lock.token
        lock.downgrade()
        assert lock.token == token and lock.mode == "shared"
        with theirs.read() as reader:
            assert reader.is_valid()
        with pytest.raises(lockkit.Invalid):
            lock.downgrade()
        lock.verify()


def test_permits_are_counted(connect: Connect) -> None:
    ours, theirs = connect(), connect()
    semaphore = ours.semaphore("importers", 3)
    with semaphore.acquire(2):
        assert theirs.semaphore("importers", 3).available_permits() == 1
        assert theirs.semaphore("importers", 3).try_acquire(2) is None
        with theirs.semaphore("importers", 3).acquire():
            assert semaphore.available_permits() == 0
            assert semaphore.try_acquire_for(0.01) is None
        with pytest.raises(lockkit.LimitMismatch) as mismatch:
            theirs.semaphore("importers", 5).acquire()
    assert (mismatch.value.in_use, mismatch.value.asked) == (3, 5)
    assert semaphore.available_permits() == 3


def test_a_break_is_told_to_the_holder_with_who_and_why(connect: Connect) -> None:
    ours, theirs = connect(ttl=6), connect()
    lock = ours.mutex("a", note="nightly").lock()
    told: "queue.Queue[lockkit.LossReason]" = queue.Queue()
    lock.on_lost(told.put)
    (standing,) = theirs.inspect("a").holders
    assert standing.note == "nightly" and standing.token == lock.token
    assert theirs.break_lock("a", standing.token, reason="stuck")
    assert lock.lost.wait(PATIENCE)
    assert told.get(timeout=PATIENCE) is lockkit.LossReason.BROKEN
    with pytest.raises(lockkit.LockLost, match="stuck") as lost:
        lock.token
    assert lost.value.broken is not None and lost.value.broken.reason == "stuck"
    with pytest.raises(lockkit.LockLost):
        lock.release()


def test_the_end_of_a_block_says_that_the_lock_was_lost_unless_the_block_failed(
    connect: Connect,
) -> None:
    ours, theirs = connect(), connect()
    with pytest.raises(lockkit.LockLost):
        with ours.mutex("a") as lock:
            theirs.break_lock("a", lock.token, force=True)
    with pytest.raises(KeyError):
        with ours.mutex("a") as lock:
            theirs.break_lock("a", lock.token, force=True)
            raise KeyError


def test_names_and_namespaces_mean_what_they_say(connect: Connect) -> None:
    ours, theirs = connect(namespace="shop"), connect(namespace="bank")
    names = ["a", "A", "a ", "a/b", "a%2Fb", "{a}", "..", "\u00e1", "a\u0301", "\U0001f512"]
    held = [ours.mutex(name).try_lock() for name in names]
    assert all(held)
    assert {it.name for it in ours.list()} == set(names) and theirs.list() == []
    assert {it.name for it in ours.list("a")} == {n for n in names if n.startswith("a")}
    assert theirs.mutex("a").try_lock() is not None
    for bad in ["", "x" * 513, "a\nb", "\ud800"]:
        with pytest.raises(lockkit.Invalid):
            ours.mutex(bad).try_lock()


def test_what_cannot_work_is_refused_before_any_request() -> None:
    urls = ["http://", "http:a", "http://a,", "http://a b", "http://a:b", "http://a:99999"]
    urls += ["http+unix:x", "ftp://a", "http://a?tmeout=1s", "http://a?timeout=1ms", "http://a/b"]
    for url in [*urls, "http://user:secret@host"]:
        with pytest.raises(lockkit.Invalid) as error:
            lockkit.connect(url)
        assert "secret" not in str(error.value)
    urls = ["http://localhost?ca=x", "http://a?token_file=x", "https://a?cert=x"]
    urls += ["https://a?token=secret", "https://a?token_file=", "https://a?ca=/nowhere"]
    for url in urls:
        with pytest.raises(lockkit.Invalid) as error:
            lockkit.connect(url)
        assert "secret" not in str(error.value)
    for token in ["two words", "\u00e4", "a\r\nb"]:
        with pytest.raises(lockkit.Invalid):
            lockkit.connect("http://localhost", token=token)
    with pytest.raises(lockkit.Invalid, match="other"):
        lockkit.connect("http://127.0.0.1,10.0.0.1", token="secret")
    assert "secret" not in repr(lockkit.connect("https://a", token="secret")._thread.settings)
    for ttl in [-1, 0, 0.001, float("nan"), 1e9]:
        with pytest.raises(ValueError):
            lockkit.connect("http://a", ttl=ttl)
    locks = lockkit.connect("http://10.0.0.1:80,[::1]/?timeout=100ms")
    with pytest.raises(lockkit.Invalid):
        locks.semaphore("a", 2).acquire(3)
    with pytest.raises(lockkit.Invalid):
        locks.register("lockkit.once/a")
