"""Servers that are killed, frozen and stopped, and answers that get lost."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, List

import pytest

import lockkit
from conftest import Connect
from lockkit import _held_lock
from moved import MovedClock
from proxy import Proxy
from server import PATIENCE, Server
from waiting import begin, until


def renewed(lock: lockkit.Guard) -> None:
    """Returns once a renewal was answered, which moves the deadline; fails when it is lost."""

    def deadline() -> float:
        return time.monotonic() + lock.remaining()

    before = deadline()
    until(lambda: deadline() > before + 0.1 or not lock.is_valid())
    assert lock.is_valid()


@pytest.mark.parametrize("fault", ["kill", "freeze", "stop"])
def test_a_holder_goes_on_at_another_server_with_the_same_token(
    service: Callable[[], Server], connect: Connect, fault: str
) -> None:
    first, second = service(), service()
    both = f"{first.url},{second.url[len('http://'):]}?timeout=500ms"
    lock = connect(both, ttl=9).mutex("a").lock()
    token = lock.token
    getattr(first, fault)()
    renewed(lock)
    assert lock.token == token
    (standing,) = connect(second.url).inspect("a").queue
    assert standing.token == token
    lock.release()
    assert connect(second.url).inspect("a").queue == ()


@pytest.mark.parametrize("fault", ["kill", "freeze", "stop"])
def test_a_waiter_goes_on_at_another_server_and_keeps_its_place(
    service: Callable[[], Server], connect: Connect, fault: str
) -> None:
    first, second = service(), service()
    both = f"{first.url},{second.url[len('http://'):]}?timeout=500ms"
    holder, behind = connect(second.url), connect(second.url)
    held = holder.mutex("a").lock()
    waiting = begin(connect(both).mutex("a").lock)
    until(lambda: len(holder.inspect("a").waiters) == 1)
    later = begin(behind.mutex("a").lock)
    until(lambda: len(holder.inspect("a").waiters) == 2)
    getattr(first, fault)()
    held.release()
    lock = waiting.result(PATIENCE)
    assert lock.is_valid() and not later.done()
    token = lock.token
    lock.release()
    assert later.result(PATIENCE).token > token


def test_a_lock_is_not_valid_before_another_client_gets_it(
    service: Callable[[], Server], connect: Connect
) -> None:
    first, second = service(), service()
    lock = connect(first.url, ttl=4).mutex("a").lock()
    token = lock.token
    first.freeze()
    waiting = begin(lambda: (connect(second.url).mutex("a").lock(), lock.is_valid()))
    assert lock.lost.wait(PATIENCE)
    assert lock.lost.reason is lockkit.LossReason.UNREACHABLE
    later, valid = waiting.result(PATIENCE)
    assert later.token > token and not valid
    # What was under way when the server was frozen changes nothing.
    first.thaw()
    later.verify()
    assert not lock.is_valid() and later.is_valid()


def test_nothing_is_lost_while_the_only_server_is_replaced(
    tmp_path: Path, connect: Connect
) -> None:
    backend = f"sqlite:{tmp_path / 'other.db'}"
    first = Server(backend)
    lock = connect(f"{first.url}?timeout=500ms", ttl=15).mutex("a").lock()
    first.kill()
    second = Server(backend, f"127.0.0.1:{first.port}")
    try:
        renewed(lock)
        lock.verify()
        lock.release()
    finally:
        second.kill()


def test_a_socket_is_reached(tmp_path: Path, connect: Connect) -> None:
    server = Server(f"sqlite:{tmp_path / 'other.db'}", f"unix:{tmp_path / 'lockkit.sock'}")
    try:
        with connect(server.url).mutex("a") as lock:
            assert lock.is_valid()
    finally:
        server.kill()


def test_an_acquire_whose_answer_was_lost_is_repeated_with_the_same_id(
    connect: Connect, proxy: Proxy
) -> None:
    proxy.lose("/v1/acquire", times=2)
    locks = connect(proxy.url)
    lock = locks.mutex("a").lock()
    ids = {it["claim"]["id"] for it in proxy.asked("/v1/acquire")}
    assert len(proxy.asked("/v1/acquire")) == 3 and len(ids) == 1
    assert [it.token for it in locks.inspect("a").queue] == [lock.token]


def test_an_acquire_is_not_repeated_after_its_wait_ttl(connect: Connect, proxy: Proxy) -> None:
    rule = proxy.lose("/v1/acquire", times=1_000_000)
    locks = connect(proxy.url, wait_ttl=0.2)
    asking = begin(locks.mutex("a").lock)
    until(lambda: len({it["claim"]["id"] for it in proxy.asked("/v1/acquire")}) > 1)
    rule.times = 0
    lock = asking.result(PATIENCE)
    # None of the earlier claims stands in the way of the last one, or is left behind.
    until(lambda: [it.token for it in locks.inspect("a").queue] == [lock.token])


def test_an_acquire_that_arrives_after_its_release_leaves_no_ghost(
    connect: Connect, proxy: Proxy
) -> None:
    late = proxy.delay("/v1/acquire")
    locks = connect(f"{proxy.url}?timeout=200ms", ttl=3600, wait_ttl=3600)
    with pytest.raises(lockkit.Unavailable):
        locks.mutex("a").try_lock()
    until(lambda: proxy.asked("/v1/release"))
    late.go_on.set()
    assert late.answered.wait(PATIENCE) and late.status == 200, "it holds, for nobody"
    until(lambda: not locks.inspect("a").queue)


def test_a_release_whose_answer_was_lost_is_no_error_and_is_repeated(
    connect: Connect, proxy: Proxy
) -> None:
    proxy.lose("/v1/release")
    lock = connect(proxy.url).mutex("a").lock()
    lock.release()
    proxy.refuse("/v1/release", times=3)
    locks = connect(proxy.url)
    lock = locks.mutex("b").lock()
    with pytest.raises(lockkit.Unavailable):
        lock.release()
    assert not lock.is_valid()
    until(lambda: not locks.inspect("b").queue)


@pytest.mark.parametrize("status", [429, 503])
def test_a_release_that_finds_nothing_says_so_also_when_an_attempt_was_refused_before(
    connect: Connect, proxy: Proxy, status: int
) -> None:
    lock = connect(proxy.url).mutex("a").lock()
    connect().break_lock("a", lock.token, force=True)
    proxy.answer("/v1/release", status, code="unavailable", detail="not now")
    with pytest.raises(lockkit.LockLost) as error:
        lock.release()
    assert error.value.reason is lockkit.LossReason.BROKEN
    assert len(proxy.asked("/v1/release")) == 2


FORBIDDEN: Dict[str, Any] = {"code": "forbidden", "detail": "no right to this"}


def test_a_downgrade_that_may_have_been_done_and_is_refused_gives_the_lock_back(
    connect: Connect, proxy: Proxy
) -> None:
    locks, others = connect(proxy.url), connect()
    lock = locks.rwlock("a").write()
    proxy.lose("/v1/downgrade")
    proxy.answer("/v1/downgrade", 403, **FORBIDDEN)
    with pytest.raises(lockkit.Refused):
        lock.downgrade()
    assert not lock.is_valid()
    with pytest.raises(lockkit.LockReleased):
        lock.token
    until(lambda: not others.inspect("a").queue)


def test_a_downgrade_that_was_certainly_not_done_leaves_the_lock_as_it_was(
    connect: Connect, proxy: Proxy
) -> None:
    lock = connect(proxy.url).rwlock("a").write()
    proxy.answer("/v1/downgrade", 403, **FORBIDDEN)
    with pytest.raises(lockkit.Refused):
        lock.downgrade()
    assert lock.mode == "exclusive" and lock.is_valid()
    proxy.lose("/v1/downgrade")
    lock.downgrade()
    assert lock.mode == "shared" and lock.is_valid()


def test_a_write_whose_answer_was_lost_is_not_done_twice(connect: Connect, proxy: Proxy) -> None:
    register = connect(proxy.url).register("cursor")
    first = register.put("41")
    proxy.lose("/v1/registers/store")
    second = register.put("42", expect=first)
    entry = register.get()
    assert entry is not None and (entry.value, entry.version) == (b"42", second)
    asked = proxy.asked("/v1/registers/store")[1:]
    assert [it["write"]["repeated"] for it in asked] == [False, True]
    assert len({it["write"]["write_id"] for it in asked}) == 1


def test_many_locks_are_renewed_in_one_request_and_none_after_the_last_release(
    connect: Connect, proxy: Proxy
) -> None:
    clock = MovedClock()
    locks = connect(proxy.url, ttl=600, clock=clock)
    held = [locks.mutex(f"lock/{number}").lock() for number in range(100)]
    clock.ahead += 250
    renewed(held[0])
    (renewal,) = proxy.asked("/v1/renew")
    assert len(renewal["claims"]) == 100
    for lock in held:
        lock.release()
    clock.ahead += 250
    locks.mutex("later").lock().release()
    assert locks.list("lock/") == [] and len(proxy.asked("/v1/renew")) == 1


def test_what_is_lost_costs_no_other_lock(connect: Connect) -> None:
    locks = connect(ttl=6)
    held = [locks.mutex(name).lock() for name in "abc"]
    connect().break_lock("b", held[1].token, force=True)
    assert held[1].lost.wait(PATIENCE)
    assert held[1].lost.reason in (lockkit.LossReason.BROKEN, lockkit.LossReason.VANISHED)
    renewed(held[0])
    assert held[0].is_valid() and held[2].is_valid()


def test_a_fork_does_not_hold_the_locks_of_its_parent(connect: Connect) -> None:
    locks = connect()
    lock = locks.mutex("a").lock()
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        said = [str(lock.is_valid())]
        for ask in (lambda: lock.token, lock.release, locks.mutex("b").try_lock):
            try:
                ask()
            except lockkit.Error as error:
                said.append(type(error).__name__)
        del lock
        os.write(writes, " ".join(said).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reads, 1000) == b"False LockLost LockLost"
    os.close(reads)
    os.close(writes)
    lock.verify()


PROGRAM = """
import sys, lockkit
locks = lockkit.connect(sys.argv[1], ttl=3600, wait_ttl=3600)
lock = locks.mutex("a").lock()
assert lock.is_valid()
"""


def test_a_program_that_ends_gives_back_its_locks(connect: Connect, server: Server) -> None:
    locks = connect()
    environment = {**os.environ, "PYTHONPATH": str(Path(lockkit.__file__).parents[1])}
    words = [sys.executable, "-c", PROGRAM, server.url]
    subprocess.run(words, env=environment, check=True, timeout=PATIENCE)
    assert locks.inspect("a").queue == ()


def test_a_connection_that_nothing_refers_to_ends_its_thread(connect: Connect) -> None:
    def ours() -> List[str]:
        return [it.name for it in threading.enumerate() if it.name == "lockkit"]

    watching = connect()
    watching.inspect("a")
    before = len(ours())
    url = watching._thread.settings.servers[0].authority
    lock = lockkit.connect(f"http://{url}").mutex("a").lock()
    assert lock.is_valid() and len(ours()) == before + 1
    del lock
    until(lambda: len(ours()) == before)
    assert watching.inspect("a").queue == ()


def test_an_interrupt_ends_a_wait_and_leaves_no_claim(connect: Connect, server: Server) -> None:
    locks = connect()
    with locks.mutex("a"):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, server.url],
            env={**os.environ, "PYTHONPATH": str(Path(lockkit.__file__).parents[1])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # What runs in the background of a shell ignores interrupts, and so do its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        until(lambda: locks.inspect("a").waiters or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=PATIENCE)
        assert out == "" and "KeyboardInterrupt" in error
        assert not locks.inspect("a").waiters


def test_a_callback_that_blocks_holds_up_no_renewal(connect: Connect) -> None:
    locks = connect(ttl=6)
    lost, kept = locks.mutex("a").lock(), locks.mutex("b").lock()
    go_on, begun = threading.Event(), threading.Event()

    def block(reason: lockkit.LossReason) -> None:
        begun.set()
        go_on.wait(PATIENCE)

    lost.on_lost(block)
    locks.break_lock("a", lost.token, force=True)
    assert begun.wait(PATIENCE)
    renewed(kept)
    assert kept.is_valid()
    go_on.set()


def test_a_thread_that_cannot_be_started_for_a_callback_stops_no_release(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't create new thread at interpreter shutdown")

    locks, others = connect(ttl=3600), connect()
    held = [locks.mutex(name).lock() for name in "abc"]
    for lock in held:
        lock.on_lost(lambda reason: None)
    # What the package sees of the module.
    threads = SimpleNamespace(Thread=Refused, Event=threading.Event)
    monkeypatch.setattr(_held_lock, "threading", threads)
    locks.close()
    assert others.list() == [] and not any(lock.is_valid() for lock in held)
    assert [it.levelname for it in caplog.records] == ["WARNING"] * 3


def test_a_thread_without_an_event_loop_says_why_and_is_started_again(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted() -> asyncio.AbstractEventLoop:
        raise OSError(errno.EMFILE, "Too many open files")

    locks = connect()
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "new_event_loop", exhausted)
        with pytest.raises(OSError, match="Too many open files"):
            begin(locks.mutex("a").lock).result(10)
    with locks.mutex("a") as lock:
        assert lock.is_valid()


def test_what_is_no_lock_service_is_said_so(connect: Connect) -> None:
    with pytest.raises(lockkit.Unavailable) as error:
        connect("http://127.0.0.1:1").mutex("a").try_lock()
    assert "127.0.0.1:1" in str(error.value) and not error.value.maybe_done


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
def test_a_proxy_whose_server_is_away_is_asked_again(
    connect: Connect, proxy: Proxy, status: int
) -> None:
    proxy.answer("/v1/acquire", status)
    proxy.answer("/v1/inspect", status)
    locks = connect(proxy.url)
    with locks.mutex("a") as lock:
        (standing,) = locks.inspect("a").queue
        assert standing.token == lock.token
    assert len(proxy.asked("/v1/acquire")) == len(proxy.asked("/v1/inspect")) == 2


@pytest.mark.parametrize("status", [200, 301, 404, 500])
def test_what_is_no_lock_service_is_not_asked_again(
    connect: Connect, proxy: Proxy, status: int
) -> None:
    proxy.answer("/v1/acquire", status)
    with pytest.raises(lockkit.Refused, match=f"{status}, and no answer of a lock service"):
        connect(proxy.url).mutex("a").lock()
