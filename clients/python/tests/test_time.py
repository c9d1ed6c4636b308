"""The rules of time: every way to a deadline has a case in which the answer comes late."""

from __future__ import annotations

import time
from concurrent.futures import Future

import pytest

import lockkit
from conftest import Connect
from lockkit._clock import AgreeingClock, SteadyClock, system_clock
from lockkit._record import Record
from lockkit._settings import this_process
from lockkit._wire import Claim, Ended, Held, state
from moved import MovedClock
from proxy import Proxy, Rule
from server import PATIENCE
from waiting import begin, until

TTL = 30.0
MARGIN = TTL / 10 + 0.002  # a clock may be slewed by 8.33 %


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


def late(rule: Rule, clock: MovedClock, seconds: float) -> None:
    """So much time passes between the server's answer and its arrival."""
    assert rule.reached.wait(PATIENCE)
    clock.ahead += seconds
    rule.go_on.set()


def test_a_grant_counts_from_before_its_request_was_sent(
    connect: Connect, proxy: Proxy, clock: MovedClock
) -> None:
    locks = connect(proxy.url, ttl=TTL, clock=clock)
    proxy.refuse("/v1/renew", times=1_000_000)  # a renewal is due at once
    rule = proxy.hold("/v1/acquire")
    asking = begin(locks.mutex("a").lock)
    late(rule, clock, 8)  # time for two such round trips is left: it is a guard without a renewal
    lock = asking.result(PATIENCE)
    assert 0 < lock.remaining() <= TTL - 8 - MARGIN


def test_a_grant_after_waiting_counts_from_before_the_last_poll(
    connect: Connect, proxy: Proxy, clock: MovedClock
) -> None:
    holder = connect()
    held = holder.mutex("a").lock()

    proxy.refuse("/v1/renew", times=1_000_000)
    rule = proxy.hold("/v1/wait")
    locks = connect(proxy.url, ttl=TTL, clock=clock)
    asking = begin(locks.mutex("a").lock)
    until(lambda: proxy.asked("/v1/wait"))
    held.release()
    late(rule, clock, 20)
    lock = asking.result(PATIENCE)
    assert 0 < lock.remaining() <= TTL - 20 - MARGIN


def test_a_grant_that_comes_after_its_lease_is_never_a_guard(
    connect: Connect, proxy: Proxy, clock: MovedClock
) -> None:
    locks = connect(proxy.url, ttl=TTL, clock=clock)
    rule = proxy.hold("/v1/acquire")
    asking = begin(locks.mutex("a").lock)
    late(rule, clock, TTL)
    lock = asking.result(PATIENCE)
    first, second = (it["claim"]["id"] for it in proxy.asked("/v1/acquire"))
    assert first != second and lock.is_valid()
    assert proxy.asked("/v1/release")[0]["claim"]["id"] == first
    assert [it.token for it in locks.inspect("a").queue] == [lock.token]


def due(clock: MovedClock) -> None:
    """Two fifths of the ttl: a renewal is due, and nothing is over."""
    clock.ahead += 0.4 * TTL


def test_a_renewal_counts_from_before_it_was_sent(
    connect: Connect, proxy: Proxy, clock: MovedClock
) -> None:
    lock = connect(proxy.url, ttl=TTL, clock=clock).mutex("a").lock()
    rule = proxy.hold("/v1/renew")
    proxy.refuse("/v1/renew", times=1_000_000)  # the next one is due at once
    due(clock)
    left = lock.remaining()  # 15 s
    late(rule, clock, 12)
    until(lambda: lock.remaining() > left - 12 + 1)
    assert lock.remaining() <= TTL - 12 - MARGIN


def test_a_renewal_whose_answer_comes_after_the_deadline_revives_nothing(
    connect: Connect, proxy: Proxy, clock: MovedClock
) -> None:
    lock = connect(proxy.url, ttl=TTL, clock=clock).mutex("a").lock()
    rule = proxy.hold("/v1/renew")
    due(clock)
    late(rule, clock, 20)  # the lease that it tells of goes on, and the guard was invalid before
    assert not lock.is_valid()
    with pytest.raises(lockkit.LockLost):
        lock.token
    assert lock.lost.wait(PATIENCE) and not lock.is_valid()


@pytest.mark.parametrize("path", ["/v1/verify", "/v1/downgrade"])
def test_what_renews_by_the_way_counts_from_before_it_was_sent(
    connect: Connect, proxy: Proxy, clock: MovedClock, path: str
) -> None:
    locks = connect(proxy.url, ttl=TTL, clock=clock)
    lock = locks.rwlock("a").write()
    proxy.refuse("/v1/renew", times=1_000_000)
    clock.ahead += 0.2 * TTL
    rule = proxy.hold(path)
    asking: "Future[None]" = begin(lock.verify if path == "/v1/verify" else lock.downgrade)
    late(rule, clock, 15)
    asking.result(PATIENCE)
    # Without it there would be 0.8 * 30 - 15 left.
    assert 9.5 < lock.remaining() <= TTL - 15 - MARGIN


def test_a_process_that_was_suspended_sees_the_loss_when_it_wakes(
    connect: Connect, clock: MovedClock
) -> None:
    lock = connect(ttl=TTL, clock=clock).mutex("a").lock()
    clock.ahead += TTL - MARGIN
    assert not lock.is_valid() and lock.lost.is_set()
    with pytest.raises(lockkit.LockLost) as lost:
        lock.token
    assert lost.value.reason is lockkit.LossReason.EXPIRED


def test_a_lock_that_is_not_renewed_ends_with_its_lease(connect: Connect, proxy: Proxy) -> None:
    locks = connect(proxy.url, ttl=2)
    lock = locks.mutex("a", auto_renew=False).lock()
    assert lock.lost.wait(PATIENCE) and lock.lost.reason is lockkit.LossReason.EXPIRED
    assert proxy.asked("/v1/renew") == []
    with pytest.raises(lockkit.LockLost):
        lock.release()


def test_a_holder_that_hangs_is_lost_after_max_hold_and_given_back(connect: Connect) -> None:
    locks = connect(ttl=3600)
    lock = locks.mutex("a", max_hold=0.5).lock()
    assert lock.remaining() <= 0.5
    assert lock.lost.wait(PATIENCE) and lock.lost.reason is lockkit.LossReason.MAX_HOLD
    until(lambda: not locks.inspect("a").queue)


def record(clock: lockkit.Clock) -> Record:
    claim = Claim("0" * 32, "", "a", "exclusive", None, None, TTL, 10, this_process(), None)
    return Record(claim, clock, uncertain=False, renewed=True)


class SetClock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time


def test_a_renewal_never_shortens() -> None:
    clock = SetClock()
    it = record(clock)
    assert it.grant(Held(7, TTL, TTL, 0), clock.time)
    assert it.remaining() == pytest.approx(TTL - MARGIN)
    it.renewed(Held(7, TTL, 5, 0), clock.time)
    it.renewed(Held(7, TTL, TTL, 0), clock.time - 9)
    assert it.remaining() == pytest.approx(TTL - MARGIN)


def test_what_remains_counts_and_not_the_ttl() -> None:
    clock = SetClock()
    it = record(clock)
    assert it.grant(Held(7, TTL, 12, 0), clock.time)
    assert it.remaining() == pytest.approx(12 - MARGIN)
    assert not record(clock).grant(Held(7, TTL, MARGIN, 0), clock.time)


def test_an_answer_after_the_deadline_revives_nothing() -> None:
    clock = SetClock()
    it = record(clock)
    it.grant(Held(7, TTL, TTL, 0), clock.time)
    clock.time += TTL - MARGIN
    assert not it.grant(Held(7, TTL, TTL, 0), clock.time - 1)
    assert it.remaining() == 0 and it.expire()


def test_what_has_ended_stays_ended() -> None:
    clock = SetClock()
    it = record(clock)
    it.grant(Held(7, TTL, TTL, 0), clock.time)
    it.renewed(Ended(lockkit.LossReason.BROKEN, None), clock.time)
    it.renewed(Held(7, TTL, TTL, 0), clock.time)
    with pytest.raises(lockkit.LockLost):
        it.token()
    assert it.remaining() == 0


def test_the_clock_goes_on_during_suspend_where_the_system_has_such_a_clock() -> None:
    assert hasattr(time, "CLOCK_BOOTTIME") == isinstance(system_clock(), SteadyClock)


def test_the_clock_counts_what_the_faster_of_two_clocks_counted() -> None:
    boot, raw = SetClock(), SetClock()
    clock = SteadyClock(boot.now, raw.now)

    def passes(boot_seconds: float, raw_seconds: float) -> float:
        before = clock.now()
        boot.time += boot_seconds
        raw.time += raw_seconds
        return clock.now() - before

    assert passes(60, 60) == pytest.approx(60)
    assert passes(55, 60) == pytest.approx(60), "the system's clock is slewed slow"
    assert passes(4, 0) == pytest.approx(4), "suspended, for less than what the raw clock gained"
    assert passes(65, 60) == pytest.approx(65)
    assert passes(0.01, 0) + passes(0, 0.01) == pytest.approx(0.01), "no anchor between the two"


def test_a_reading_that_was_interrupted_is_taken_again() -> None:
    boot, raw = SetClock(), SetClock()
    interrupted = [0, 2, 0]

    def read_raw() -> float:
        by = interrupted.pop() if interrupted else 0
        boot.time += by
        raw.time += by
        return raw.time

    clock = SteadyClock(boot.now, read_raw)
    began = clock.now()  # interrupted before it reads the raw clock
    boot.time += 10
    raw.time += 10
    assert clock.now() - began == pytest.approx(10)


def test_the_greater_of_the_margin_here_and_of_the_one_that_an_answer_names_counts() -> None:
    clock = SetClock()
    for named, counts in [(0, MARGIN), (MARGIN - 1, MARGIN), (MARGIN + 1, MARGIN + 1)]:
        it = record(clock)
        assert it.grant(Held(7, TTL, TTL, 0, named), clock.time)
        assert it.remaining() == pytest.approx(TTL - counts)
        assert it.lease_end() == pytest.approx(clock.time + TTL)


def test_an_answer_names_its_margin() -> None:
    answer = {"state": "held", "token": "7", "ttl_ms": 30_000, "remaining_ms": 30_000}
    assert state({**answer, "margin_ms": 4_000}) == Held(7, 30, 30, 0, 4)
    assert state(answer) == Held(7, 30, 30, 0, 0), "an older service names none"


def test_elsewhere_a_lock_is_valid_only_while_wall_and_monotonic_clock_agree() -> None:
    monotonic, wall = SetClock(), SetClock()
    clock = AgreeingClock(monotonic.now, wall.now)

    def passes(monotonic_seconds: float, wall_seconds: float) -> float:
        before = clock.now()
        monotonic.time += monotonic_seconds
        wall.time += wall_seconds
        return clock.now() - before

    assert passes(10, 10) == pytest.approx(10)
    assert passes(100, 100.05) == pytest.approx(100.05), "a clock that is slewed"
    assert passes(100, 108.33) == pytest.approx(108.33), "by as much as chrony does"
    assert passes(100, 91.67) == pytest.approx(100), "and back: never slower than either"
    assert passes(0, 40) > 1e8, "suspended, or set"
    assert passes(1, 1) == pytest.approx(1)
    assert passes(1, -40) > 1e8, "set back: a suspend might hide in it"


def test_a_grant_of_which_little_is_left_is_renewed_before_it_is_a_guard(
    connect: Connect, proxy: Proxy, clock: MovedClock
) -> None:
    locks = connect(proxy.url, ttl=TTL, clock=clock)
    rule = proxy.hold("/v1/acquire")
    asking = begin(locks.mutex("a").lock)
    late(rule, clock, TTL - MARGIN - 0.5)
    lock = asking.result(PATIENCE)
    assert lock.remaining() > TTL / 2
    assert len(proxy.asked("/v1/acquire")) == 1 and proxy.asked("/v1/release") == []


def test_so_is_one_that_a_waiter_learns_of_late(
    connect: Connect, proxy: Proxy, clock: MovedClock
) -> None:
    held = connect().mutex("a").lock()
    rule = proxy.hold("/v1/wait")
    asking = begin(connect(proxy.url, ttl=TTL, clock=clock).mutex("a").lock)
    until(lambda: proxy.asked("/v1/wait"))
    held.release()
    late(rule, clock, TTL - MARGIN - 0.5)
    lock = asking.result(PATIENCE)
    assert lock.remaining() > TTL / 2
    assert len(proxy.asked("/v1/acquire")) == 1 and proxy.asked("/v1/release") == []


def test_a_waiter_keeps_a_grant_whose_poll_was_sent_more_than_its_ttl_ago(
    connect: Connect, proxy: Proxy, clock: MovedClock
) -> None:
    holder = connect()
    held = holder.mutex("a").lock()
    rule = proxy.hold("/v1/wait")
    asking = begin(connect(proxy.url, ttl=TTL, clock=clock).mutex("a").lock)
    until(lambda: proxy.asked("/v1/wait"))
    (waiter,) = holder.inspect("a").waiters
    held.release()
    late(rule, clock, TTL)  # the grant, which is new, ends it
    lock = asking.result(PATIENCE)
    assert lock.token == waiter.token and lock.remaining() > TTL / 2
    assert len(proxy.asked("/v1/acquire")) == 1 and proxy.asked("/v1/release") == []


def test_what_such_a_waiter_is_told_then_counts_from_its_own_request(
    connect: Connect, proxy: Proxy, clock: MovedClock
) -> None:
    held = connect().mutex("a").lock()
    first, second = proxy.hold("/v1/wait"), proxy.hold("/v1/wait")
    proxy.refuse("/v1/renew", times=1_000_000)  # a renewal is due at once
    asking = begin(connect(proxy.url, ttl=TTL, clock=clock).mutex("a").lock)
    until(lambda: proxy.asked("/v1/wait"))
    held.release()
    late(first, clock, TTL)
    late(second, clock, 12)
    assert 0 < asking.result(PATIENCE).remaining() <= TTL - 12 - MARGIN


def test_a_waiter_whose_second_answer_is_late_too_asks_with_another_claim(
    connect: Connect, proxy: Proxy, clock: MovedClock
) -> None:
    held = connect().mutex("a").lock()
    first, second = proxy.hold("/v1/wait"), proxy.hold("/v1/wait")
    asking = begin(connect(proxy.url, ttl=TTL, clock=clock).mutex("a").lock)
    until(lambda: proxy.asked("/v1/wait"))
    held.release()
    late(first, clock, TTL)
    late(second, clock, TTL)
    assert asking.result(PATIENCE).is_valid()
    claims = [it["claim"]["id"] for it in proxy.asked("/v1/acquire")]
    assert len(set(claims)) == 2
    assert [it["claim"]["id"] for it in proxy.asked("/v1/release")] == claims[:1]


def test_a_grant_that_is_not_renewed_later_is_renewed_once_when_half_of_it_is_gone(
    connect: Connect, proxy: Proxy, clock: MovedClock
) -> None:
    locks = connect(proxy.url, ttl=TTL, clock=clock)
    rule = proxy.hold("/v1/acquire")
    asking = begin(locks.mutex("a", auto_renew=False).lock)
    late(rule, clock, 0.6 * TTL)
    assert asking.result(PATIENCE).remaining() > TTL / 2
    assert len(proxy.asked("/v1/renew")) == 1
    with locks.mutex("b", auto_renew=False) as lock:
        assert lock.is_valid() and len(proxy.asked("/v1/renew")) == 1


def test_where_all_answers_are_late_a_lock_is_had_all_the_same(
    connect: Connect, proxy: Proxy, clock: MovedClock
) -> None:
    locks = connect(proxy.url, ttl=TTL, clock=clock)
    acquire, renewal = proxy.hold("/v1/acquire"), proxy.hold("/v1/renew")
    asking = begin(locks.mutex("a").lock)
    late(acquire, clock, 0.6 * TTL)
    late(renewal, clock, 0.6 * TTL)
    lock = asking.result(PATIENCE)
    assert lock.is_valid() and len(proxy.asked("/v1/acquire")) == 1
    assert proxy.asked("/v1/release") == []


def test_a_late_grant_that_cannot_be_renewed_is_kept_until_its_lease_is_over(
    connect: Connect, proxy: Proxy, clock: MovedClock
) -> None:
    locks = connect(proxy.url, ttl=TTL, clock=clock)
    rule = proxy.hold("/v1/acquire")
    renewals = proxy.refuse("/v1/renew", times=1_000_000)
    asking = begin(locks.mutex("a").lock)
    late(rule, clock, TTL - MARGIN - 2)
    until(lambda: len(proxy.asked("/v1/renew")) > 1)
    assert not asking.done() and proxy.asked("/v1/release") == []
    clock.ahead += 2
    until(lambda: len(proxy.asked("/v1/acquire")) == 2)
    renewals.times = 0
    assert asking.result(PATIENCE).is_valid()
    first, second = (it["claim"]["id"] for it in proxy.asked("/v1/acquire"))
    assert first != second


def test_a_try_whose_grants_come_late_begins_nothing_after_one_ttl(
    connect: Connect, proxy: Proxy, clock: MovedClock
) -> None:
    locks = connect(proxy.url, ttl=TTL, clock=clock)
    rule = proxy.hold("/v1/acquire")
    asking = begin(locks.mutex("a").try_lock)
    late(rule, clock, TTL)
    with pytest.raises(lockkit.Unavailable, match="after the lease"):
        asking.result(PATIENCE)
    assert len(proxy.asked("/v1/acquire")) == 1
    until(lambda: not locks.inspect("a").queue)
