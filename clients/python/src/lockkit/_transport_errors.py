"""Why a request got no answer of a lock service, in words that say what to do. No I/O.

A trouble *lasts* when it does not pass by itself: a certificate that is not trusted, another
protocol, another service. It is told from one that passes only here.
"""

from __future__ import annotations

import socket
import ssl


class TransportError(Exception):
    """A request that got no answer. ``sent``: it may have been carried out."""

    def __init__(self, text: str, sent: bool, lasts: bool = False) -> None:
        super().__init__(text)
        self.sent = sent
        self.lasts = lasts


class NoSuchName(TransportError):
    """The name of the server is not known: names of containers appear late, so this may pass."""

    def __init__(self) -> None:
        super().__init__("there is no such host: is the name right?", sent=False)


SPEAKS_TLS = "it speaks TLS: use https://"
SPEAKS_PLAIN = "it does not speak TLS: use http://"
SPEAKS_OTHER = "what answers there does not speak HTTP: check host and port"

_PLAIN = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
_REFUSED = ("BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "UNKNOWN_CA", "CERTIFICATE_EXPIRED")
_NAMES = tuple(
    getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA") if hasattr(socket, name)
)
_HOSTNAME, _EXPIRED = (62, 64), 10
"""What OpenSSL says of a certificate: it is for another name or address; its time is over."""


def of(error: BaseException, sent: bool) -> TransportError:
    """The trouble that an exception of a connection is."""
    if isinstance(error, TransportError):
        return error
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return TransportError("the connection was closed", sent)
    if isinstance(error, ssl.SSLError):
        return TransportError(_of_tls(error), sent, lasts=True)
    if isinstance(error, socket.gaierror) and error.errno in _NAMES:
        return NoSuchName()
    if isinstance(error, EOFError):
        return TransportError("the connection was closed", sent)
    if isinstance(error, UnicodeError) and not sent:
        return TransportError("this is no name of a host", sent, lasts=True)
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return TransportError(text, sent)


def _of_tls(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = "add ?ca=FILE with the certificate of the authority that issued it"
        if error.verify_code in _HOSTNAME:
            remedy = "use a name that is in it"
        elif error.verify_code == _EXPIRED:
            remedy = "it needs a new one"
        return f"its certificate is not trusted ({error.verify_message}): {remedy}"
    reason = error.reason or ""
    if reason in _PLAIN:
        return SPEAKS_PLAIN
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return f"it wants a certificate of the client ({reason}): add ?cert=FILE&key=FILE"
    if reason.endswith(_REFUSED):
        return f"it refuses the certificate of the client ({reason}): check cert=FILE"
    return f"TLS failed ({reason or error})"


def of_bytes(begin: bytes) -> TransportError:
    """What came is not the beginning of an answer in HTTP."""
    tls = begin[:1] in (b"\x15", b"\x16") and begin[1:2] in (b"\x03", b"")
    return TransportError(SPEAKS_TLS if tls else SPEAKS_OTHER, sent=True, lasts=True)
