"""Waiting for what must come."""

from __future__ import annotations

import time
from typing import Callable

from server import PATIENCE


def until(holds: Callable[[], object]) -> None:
    """Returns once this holds; fails when it takes much too long."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "this never came"
        time.sleep(0.01)
