"""What the caller of ``connect`` says: the URL of a service, and defaults of its locks. No I/O."""

from __future__ import annotations

import ipaddress
import math
import os
import re
import socket
import ssl
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Dict, Optional, Tuple, Union

from ._errors import Holder, Invalid

Seconds = Union[int, float, timedelta]
"""A duration: a number of seconds, or a ``timedelta``."""

TOKEN = "LOCKKIT_HTTP_TOKEN"
"""The variable that has the bearer token where nothing else says it."""

PORT = 7411
"""The port of a URL that names none."""


@dataclass(frozen=True)
class Server:
    """One server of a service: a host and a port, or the path of a Unix socket."""

    host: str
    port: int
    path: str = ""

    @property
    def authority(self) -> str:
        """What the ``Host`` header says."""
        if self.path:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def is_here(self) -> bool:
        """Whether what is sent to it stays on this host."""
        try:
            loopback = ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            loopback = self.host == "localhost"
        return bool(self.path) or loopback

    def __str__(self) -> str:
        return self.path or self.authority


@dataclass(frozen=True)
class Settings:
    """Where the service is, and the defaults of its locks. Durations are in seconds."""

    servers: Tuple[Server, ...]
    timeout: float
    tls: Optional[ssl.SSLContext]
    token: str = field(repr=False)
    """The bearer token; empty for none."""
    namespace: str
    ttl: float
    wait_ttl: float
    lock_delay: float = 0.0


def settings(
    url: str, token: str, namespace: str, ttl: Seconds, wait_ttl: Seconds, lock_delay: Seconds = 0
) -> Settings:
    """Checks all that can be checked without a request. Reads the files that the URL names."""
    place, _, query = url.partition("?")
    servers, secure = _servers(place)
    options = _options(query, secure)
    if "token_file" in options:
        token = _read(options["token_file"])
    token = token or os.environ.get(TOKEN, "").strip()
    if token and not secure and not all(server.is_here() for server in servers):
        raise Invalid(
            "a token travels by https:// or within this host only: over http:// to another host, "
            "everybody between could use it"
        )
    return Settings(
        servers=servers,
        timeout=_timeout(options.get("timeout", "5s")),
        tls=_tls(options) if secure else None,
        token=_checked_token(token),
        namespace=namespace,
        ttl=checked_ttl("ttl", ttl),
        wait_ttl=checked_ttl("wait_ttl", wait_ttl),
        lock_delay=in_seconds("lock_delay", lock_delay),
    )


def _servers(place: str) -> Tuple[Tuple[Server, ...], bool]:
    """The servers of a URL, and whether they speak TLS."""
    scheme, _, rest = place.partition(":")
    if scheme == "http+unix":
        if not rest.startswith("/"):
            raise Invalid("http+unix: wants an absolute path: http+unix:/run/lockkit.sock")
        return (Server("", 0, rest),), False
    if scheme not in ("http", "https") or not rest.startswith("//"):
        raise Invalid(
            "the URL of a lock service is http://HOST:7411, https://HOST:7411 or http+unix:/PATH"
        )
    hosts = rest[2:]
    if hosts.endswith("/"):
        hosts = hosts[:-1]
    return tuple(_server(host) for host in hosts.split(",")), scheme == "https"


_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")


def _server(text: str) -> Server:
    found = _HOST.fullmatch(text)
    if found is None or not 0 < int(found[3] or PORT) < 65536:
        # What has an @ may have a password before it.
        shown = "…@…" if "@" in text else text
        raise Invalid(f"{shown!r} is no server: use http://HOST:PORT, or several with commas")
    return Server(found[1] or found[2], int(found[3] or PORT))


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}


def _timeout(text: str) -> float:
    found = re.fullmatch(r"([0-9]+)(ms|s|m)", text)
    timeout = int(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0.1 <= timeout <= 60:
        raise Invalid("the timeout of a lock service is between 100ms and 60s")
    return timeout


_FILES = ("ca", "cert", "key")


def _options(query: str, secure: bool) -> Dict[str, str]:
    options: Dict[str, str] = {}
    for option in filter(None, query.split("&")):
        name, _, value = option.partition("=")
        if name == "token":
            raise Invalid("a token in a URL is seen in process lists: use token_file=FILE")
        if name not in ("timeout", "token_file", *_FILES):
            known = "there are: timeout, token_file, and for https: ca, cert, key"
            raise Invalid(f"{name} is no option of a lock service ({known})")
        if name in _FILES and not secure:
            raise Invalid("certificates need a URL that speaks TLS: https://")
        if not value:
            raise Invalid(f"{name} needs a value")
        options[name] = value
    if ("cert" in options) != ("key" in options):
        raise Invalid("cert and key belong together")
    return options


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise Invalid(f"cannot read the token in {path}") from error


def _checked_token(token: str) -> str:
    token = token.strip()
    if not all("!" <= character <= "~" for character in token):
        raise Invalid("the token of a lock service is one word of ASCII characters")
    return token


def _tls(options: Dict[str, str]) -> ssl.SSLContext:
    try:
        tls = ssl.create_default_context(cafile=options.get("ca"))
        if "cert" in options:
            tls.load_cert_chain(options["cert"], options["key"])
        return tls
    except (OSError, ValueError) as error:
        raise Invalid(f"TLS: {error}") from error


def in_seconds(what: str, duration: Seconds) -> float:
    """The duration in seconds; it is not negative."""
    number = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if not 0 <= number < math.inf:
        raise Invalid(f"a {what} of {duration} is no duration: use seconds, 0 or more")
    return number


LONGEST_TTL = 10 * 365 * 86_400.0


def checked_ttl(what: str, duration: Seconds) -> float:
    """The duration in seconds; refuses what cannot be a lease."""
    ttl = in_seconds(what, duration)
    if ttl > LONGEST_TTL:
        raise Invalid(f"a {what} of {duration} is too long: use 10 years at most")
    if margin(ttl) > ttl / 2:
        raise Invalid(f"a {what} of {duration} leaves nothing beside the margin of the clocks")
    return ttl


def margin(ttl: float) -> float:
    """How much earlier than the backend a client takes a lease of this ttl for ended: the rates of
    the two clocks may differ by this. chrony slews a clock by up to 8.33 %."""
    return ttl / 10 + 0.002


def this_process() -> Holder:
    """Host, process id and program of this process, as texts that fit into one line."""

    def line(text: str) -> str:
        text = text.encode("utf-8", "replace").decode()
        text = "".join(c if c.isprintable() else "?" for c in text)
        return text.encode()[:200].decode("utf-8", "ignore") or "unknown"

    path = sys.argv[0] if sys.argv else ""
    if os.path.basename(path) == "__main__.py":
        path = os.path.dirname(path)  # python -m NAME
    program = os.path.basename(path) or "python"
    return Holder(line(socket.gethostname()), os.getpid(), line(program))
