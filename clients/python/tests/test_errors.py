"""Exceptions are passed on between processes."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from functools import partial
from typing import Any, Callable, Dict, List

import pytest

import lockkit
from lockkit import BreakRecord, Holder, LossReason

BROKEN = BreakRecord(Holder("host", 7, "ops"), 1_700_000_000_000, "stuck", True)

EXAMPLES: List[lockkit.Error] = [
    lockkit.Error("this"),
    lockkit.LockLost(LossReason.BROKEN, BROKEN),
    lockkit.LockLost(LossReason.EXPIRED),
    lockkit.LockReleased(),
    lockkit.LimitMismatch("the limit differs", 3, 5),
    lockkit.Conflict("cursor", True),
    lockkit.Stale("cursor", 41, 42, True),
    lockkit.Invalid("a name has 1 to 512 bytes"),
    lockkit.Unsupported("no registers"),
    lockkit.Refused("no", "forbidden"),
    lockkit.Unavailable("no answer", False),
    lockkit.Closed(),
    lockkit.Closed("otherwise"),
]


def test_there_is_an_example_of_each() -> None:
    def below(kind: type) -> List[type]:
        return [kind, *(it for sub in kind.__subclasses__() for it in below(sub))]

    ours = {it for it in below(lockkit.Error) if it.__module__.startswith("lockkit")}
    assert {type(it) for it in EXAMPLES} == ours


def seen(error: BaseException) -> Dict[str, Any]:
    return {"type": type(error), "text": str(error), "args": error.args, **error.__dict__}


def pickled(protocol: int, error: Any) -> Any:
    return pickle.loads(pickle.dumps(error, protocol))


WAYS: Dict[str, Callable[[Any], Any]] = {
    f"pickle {protocol}": partial(pickled, protocol)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
}
WAYS.update({"copy": copy.copy, "deepcopy": copy.deepcopy})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", EXAMPLES, ids=lambda it: type(it).__name__)
def test_a_copy_is_equal(error: lockkit.Error, way: str) -> None:
    error.remark = "set by somebody"  # type: ignore[attr-defined]
    assert seen(WAYS[way](error)) == seen(error)


class OfAUser(lockkit.LockLost):
    """A subclass with a constructor of its own."""

    def __init__(self, step: int) -> None:
        super().__init__(LossReason.EXPIRED)
        self.step = step


def test_a_copy_of_a_users_own_error_is_equal() -> None:
    error = OfAUser(3)
    for way in WAYS.values():
        assert seen(way(error)) == seen(error)


def fails(number: int) -> None:
    raise EXAMPLES[number]


def test_a_worker_of_a_pool_raises_it_in_its_parent() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        with pytest.raises(lockkit.LockLost, match="stuck") as lost:
            pool.apply_async(fails, (1,)).get(timeout=20)
    assert lost.value.broken == BROKEN and lost.value.reason is LossReason.BROKEN
