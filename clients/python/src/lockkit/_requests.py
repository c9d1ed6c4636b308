"""What a caller asks for, checked before any I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Optional

from ._acquire import Request
from ._errors import Invalid
from ._settings import Seconds, Settings, checked_ttl, in_seconds


@dataclass(frozen=True)
class Options:
    """A name, and how its lock is to be had."""

    request: Request

    @property
    def name(self) -> str:
        return self.request.name

    def exclusive(self) -> Request:
        return self.request

    def shared(self) -> Request:
        return replace(self.request, mode="shared")

    def permits(self, permits: int, limit: int) -> Request:
        if not 1 <= permits <= limit:
            raise Invalid(f"{permits} permits of a semaphore of {limit} can never be had")
        return replace(self.request, mode="permits", permits=permits, limit=limit)


class Maker:
    """Options with the defaults of a connection object."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(
        self,
        name: str,
        ttl: Optional[Seconds],
        wait_ttl: Optional[Seconds],
        note: Optional[str],
        auto_renew: bool,
        max_hold: Optional[Seconds],
        at_least: Optional[Seconds] = None,
        lock_delay: Optional[Seconds] = None,
    ) -> Options:
        if not name or len(name.encode("utf-8", "surrogatepass")) > 512:
            raise Invalid("a name has 1 to 512 bytes")
        if max_hold is not None and not in_seconds("max_hold", max_hold):
            raise Invalid("a max_hold of zero holds nothing: use a longer one, or none")
        least = None if at_least is None else in_seconds("at_least", at_least)
        most = None if max_hold is None else in_seconds("max_hold", max_hold)
        if least is not None and most is not None and least > most:
            raise Invalid(f"an at_least of {least} is longer than the max_hold of {most}: make it shorter")
        delay = self._settings.lock_delay
        if lock_delay is not None:
            delay = in_seconds("lock_delay", lock_delay)
        checked_ttl("least hold and lock delay", max(least or 0.0, 1.0) + delay)
        return Options(
            Request(
                name=name,
                mode="exclusive",
                ttl=self._settings.ttl if ttl is None else checked_ttl("ttl", ttl),
                wait_ttl=self._settings.wait_ttl
                if wait_ttl is None
                else checked_ttl("wait_ttl", wait_ttl),
                note=note,
                renewed=auto_renew,
                max_hold=most,
                at_least=least,
                lock_delay=delay,
            )
        )
