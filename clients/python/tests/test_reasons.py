"""Why a lock was lost: the reason, and what the last error said."""

from __future__ import annotations

import pytest

import lockkit
from conftest import Connect
from lockkit import LossReason
from proxy import Proxy
from server import PATIENCE
from waiting import until


@pytest.mark.parametrize(
    "status, code, reason",
    [
        (401, "unauthorized", LossReason.REFUSED),
        (403, "forbidden", LossReason.REFUSED),
        (502, "backend", LossReason.REFUSED),
        (503, "unavailable", LossReason.UNREACHABLE),
    ],
)
def test_a_loss_has_the_text_of_the_last_error(
    connect: Connect, proxy: Proxy, status: int, code: str, reason: LossReason
) -> None:
    proxy.answer("/v1/renew", status, 1_000_000, code=code, detail="this was withdrawn")
    lock = connect(proxy.url, ttl=1).mutex("a").lock()
    assert lock.lost.wait(PATIENCE) and lock.lost.reason is reason
    with pytest.raises(lockkit.LockLost, match="this was withdrawn") as lost:
        lock.token
    assert lost.value.reason is reason and lost.value.detail == "this was withdrawn"


def test_a_loss_without_any_answer_says_what_was_tried(connect: Connect, proxy: Proxy) -> None:
    proxy.refuse("/v1/renew", times=1_000_000)
    lock = connect(proxy.url, ttl=1).mutex("a").lock()
    assert lock.lost.wait(PATIENCE) and lock.lost.reason is LossReason.UNREACHABLE
    with pytest.raises(lockkit.LockLost, match=proxy.url[len("http://") :]):
        lock.release()


def test_a_refusal_moves_no_deadline(connect: Connect, proxy: Proxy) -> None:
    proxy.answer("/v1/renew", 401, 1_000_000, code="unauthorized", detail="no")
    lock = connect(proxy.url, ttl=6).mutex("a").lock()
    until(lambda: len(proxy.asked("/v1/renew")) > 1)
    assert lock.is_valid() and lock.token


def test_a_release_that_finds_nothing_says_who_broke_the_lock(
    connect: Connect, proxy: Proxy
) -> None:
    locks, operator = connect(proxy.url, ttl=3600), connect()
    lock = locks.mutex("a").lock()
    operator.break_lock("a", lock.token, force=True, reason="stuck")
    with pytest.raises(lockkit.LockLost, match="stuck") as lost:
        lock.release()
    assert lost.value.reason is LossReason.BROKEN and lost.value.broken is not None
    assert lost.value.broken.reason == "stuck" and lost.value.broken.forced
    assert len(proxy.asked("/v1/verify")) == 1
    # That is asked only where nothing was found.
    with locks.mutex("a"):
        pass
    assert len(proxy.asked("/v1/verify")) == 1


def test_a_loss_that_a_renewal_finds_says_who_broke_the_lock(connect: Connect) -> None:
    lock = connect(ttl=3).mutex("a").lock()
    connect().break_lock("a", lock.token, force=True, reason="stuck")
    assert lock.lost.wait(PATIENCE) and lock.lost.reason is LossReason.BROKEN
