"""Waiting for what must come."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Callable, TypeVar

from server import PATIENCE

T = TypeVar("T")


def until(holds: Callable[[], object]) -> None:
    """Returns once this holds; fails when it takes much too long."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "this never came"
        time.sleep(0.01)


def begin(work: Callable[[], T]) -> "Future[T]":
    """Does this in a thread. One that never ends does not keep a test that failed from ending."""
    future: "Future[T]" = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
