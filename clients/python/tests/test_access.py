"""TLS and tokens, as far as the client is concerned: a proxy of the test's own speaks TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

import lockkit
from conftest import Connect
from proxy import Proxy
from server import Server

# Self-signed for 127.0.0.1, until 2126.
PEM = Path(__file__).with_name("localhost.pem")


def test_a_token_travels_by_tls_to_a_server_that_is_trusted(
    server: Server, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(PEM)
    token = tmp_path / "token"
    token.write_text("word-of-alice\n")
    with Proxy(server.port, tls) as proxy:
        with connect(f"{proxy.url}?ca={PEM}&token_file={token}").mutex("a") as lock:
            assert lock.is_valid()
        assert set(proxy.authorizations) == {"Bearer word-of-alice"}
        monkeypatch.setenv("LOCKKIT_HTTP_TOKEN", "word-of-bob\n")
        connect(f"{proxy.url}?ca={PEM}").inspect("a")
        connect(f"{proxy.url}?ca={PEM}&token_file={token}").inspect("a")
        assert proxy.authorizations[-2:] == ["Bearer word-of-bob", "Bearer word-of-alice"]
        many = len(proxy.requests)
        with pytest.raises(lockkit.Refused, match="certificate"):
            connect(proxy.url, token="word-of-alice").mutex("a").try_lock()
        assert len(proxy.requests) == many, "the token was shown to nobody else"
