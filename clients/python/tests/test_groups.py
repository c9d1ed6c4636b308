"""Registers, election and once; and that the Rust command understands them."""

from __future__ import annotations

import subprocess
from functools import partial
from typing import List, Union

import pytest

import lockkit
from conftest import Connect
from server import PATIENCE, Server, program
from waiting import begin, until


def command(server: Server, *words: str) -> "subprocess.CompletedProcess[bytes]":
    """Runs the ``lockkit`` command on the server."""
    line = [program(), words[0], "--url", server.url, *words[1:]]
    return subprocess.run(line, capture_output=True, timeout=PATIENCE, check=False)


def test_a_register_keeps_bytes_and_versions_grow_across_deletion(locks: lockkit.Locks) -> None:
    register = locks.register("cursor")
    assert register.get() is None
    values: List[Union[bytes, str]] = ["text", b"\0\xff", b""]
    versions = [register.put(value) for value in values]
    entry = register.get()
    assert entry == lockkit.Entry(b"", versions[2], None)
    register.delete()
    assert register.get() is None
    versions.append(register.put("é"))
    entry = register.get()
    assert entry is not None and entry.value == "é".encode()
    assert versions == sorted(set(versions))


def test_a_register_is_written_only_over_what_was_read(locks: lockkit.Locks) -> None:
    register = locks.register("cursor")
    absent = register.get()
    version = register.put("1", expect=absent)
    for stale in (absent, version + 1):
        with pytest.raises(lockkit.Conflict) as conflict:
            register.put("2", expect=stale)
        assert not conflict.value.maybe_applied
    entry = register.get()
    register.put("2", expect=entry)
    with pytest.raises(lockkit.Conflict):
        register.delete(expect=entry)
    register.delete(expect=register.get())


def test_a_stale_holder_cannot_overwrite_a_register(connect: Connect) -> None:
    ours, theirs = connect(), connect()
    first = ours.mutex("consumer").lock()
    token = first.token
    ours.register("cursor").put("41", lock=first)
    theirs.break_lock("consumer", token, force=True)
    with theirs.mutex("consumer") as second:
        theirs.register("cursor").put("42", lock=second)
        with pytest.raises(lockkit.Stale) as stale:
            ours.register("cursor").put("41", token=token)
        assert (stale.value.token, stale.value.highest) == (token, second.token)
        entry = ours.register("cursor").get()
        assert entry is not None and (entry.value, entry.token) == (b"42", second.token)


def test_only_a_lock_that_is_held_alone_and_is_valid_fences(connect: Connect) -> None:
    locks = connect()
    register = locks.register("cursor")
    with locks.rwlock("a").read() as reader, pytest.raises(lockkit.Invalid):
        register.put("1", lock=reader)
    with connect(namespace="other").mutex("a") as other, pytest.raises(lockkit.Invalid):
        register.put("1", lock=other)
    with locks.mutex("b") as lock:
        pass
    with pytest.raises(lockkit.LockReleased):
        register.put("1", lock=lock)
    with pytest.raises(lockkit.Invalid):
        register.put(b"x" * 65_537)
    assert register.get() is None


def test_a_value_with_a_ttl_goes_and_that_is_a_change(locks: lockkit.Locks) -> None:
    register = locks.register("cursor")
    coming = begin(partial(register.changed, None))
    register.put("1", ttl=1)
    entry = coming.result(PATIENCE)
    assert entry is not None and entry.value == b"1"
    assert register.changed(entry) is None


def test_one_leads_and_all_know_its_value(connect: Connect) -> None:
    ours, theirs = connect(), connect()
    first = ours.election("shard-7", value="10.0.0.7:4000")
    second = theirs.election("shard-7", value="10.0.0.8:4000")
    assert second.leader() is None
    seen: List[object] = []
    lead = first.try_campaign()
    assert lead is not None and second.try_campaign() is None
    leaders = second.observe()
    seen.append(next(leaders).note)
    successor = begin(second.campaign)
    until(lambda: ours.inspect("shard-7").waiters)
    token = lead.token
    lead.release()
    leader = next(leaders)
    assert leader.token > token and leader.token == successor.result(PATIENCE).token
    seen.append(leader.note)
    assert seen == ["10.0.0.7:4000", "10.0.0.8:4000"]


def test_a_job_runs_once_and_all_are_given_its_result(connect: Connect) -> None:
    runs: List[int] = []

    def run(number: int) -> lockkit.Decision:
        def work(lock: lockkit.Guard) -> str:
            assert lock.is_valid()
            runs.append(number)
            return f"by {number}"

        return connect().once("2026-11-21/report").run(work)

    begun = [begin(partial(run, number)) for number in range(4)]
    decisions = [it.result(PATIENCE) for it in begun]
    assert len(runs) == 1
    assert {it.value for it in decisions} == {f"by {runs[0]}".encode()}
    once = connect().once("2026-11-21/report")
    assert once.try_run(lambda lock: "again") == decisions[0]
    once.forget()
    assert once.decision() is None


def test_a_job_that_fails_is_done_by_the_next(connect: Connect) -> None:
    once = connect().once("job")

    def fail(lock: lockkit.Guard) -> str:
        raise RuntimeError("no disk")

    with pytest.raises(RuntimeError):
        once.run(fail)
    with connect().mutex("job"):
        assert once.try_run(lambda lock: "done") is None
    assert once.run(lambda lock: "done").value == b"done"


def test_a_job_whose_lock_is_lost_decides_nothing(connect: Connect) -> None:
    locks, other = connect(), connect()

    def work(lock: lockkit.Guard) -> str:
        assert other.break_lock("job", lock.token, force=True)
        assert lock.lost.wait(PATIENCE)
        return "too late"

    with pytest.raises(lockkit.LockLost):
        locks.once("job", ttl=6).run(work)
    assert other.once("job").decision() is None


def test_the_command_and_python_read_each_others_state(
    server: Server, locks: lockkit.Locks
) -> None:
    locks.register("cursor").put("event 41")
    assert command(server, "get", "cursor").stdout.rstrip(b"\n") == b"event 41"
    assert command(server, "put", "cursor", "event 42").returncode == 0
    entry = locks.register("cursor").get()
    assert entry is not None and entry.value == b"event 42"

    decided = locks.once("report").run(lambda lock: "by Python")
    ran = command(server, "run", "--once", "report", "--", "echo", "ran again")
    assert ran.returncode == 0 and b"ran again" not in ran.stdout
    assert command(server, "run", "--once", "other", "--", "true").returncode == 0
    other = locks.once("other").decision()
    assert other is not None and other.by.program.endswith(":true") and other.token > 0
    assert locks.once("report").decision() == decided

    with locks.mutex("nightly", note="by Python"):
        assert command(server, "run", "--try", "nightly", "--", "true").returncode == 75
        assert b"by Python" in command(server, "show", "nightly").stdout
