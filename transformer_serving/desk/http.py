"""The desk's questions over HTTP: to a URL, and to what listens on this machine.

Any status is an answer; only silence is an error, and of one kind, whatever the network did.
"""

from __future__ import annotations

import functools
import http.client
import re
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

from transformer_serving.contract.loopback import is_loopback
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import Failure

UNIX = "unix:"
# Said of an address that has what nothing here sends; a password is not repeated.
LOGIN = "a name or a password stands before its host, which are not sent: leave them out"
_BEFORE_HOST = re.compile(r"^([a-z][a-z0-9+.-]*://)?.*@", re.IGNORECASE | re.DOTALL)
KEY_VARIABLE = "TRANSFORMER_SERVING_KEY"
# Of a gateway's figures, which no other key opens.
METRICS_KEY_VARIABLE = "TRANSFORMER_SERVING_METRICS_KEY"
# The gateway takes a key here too; Authorization may be a proxy's.
KEY_HEADER = "x-api-key"
_SECRETS = (KEY_HEADER, "Authorization")
UNAUTHORIZED, FORBIDDEN = 401, 403
# What an answer that never came may be: urllib lets http.client's own errors through, and a URL
# that is none is a ValueError.
_SILENCE = (OSError, http.client.HTTPException, ValueError)
# Of OpenSSL's X509_V_ERR_...: not yet valid, expired; another host, another address.
_OUT_OF_TIME, _OTHER_NAME = (9, 10), (62, 64)


class NoAnswer(OSError):
    """Nothing answered, or not to the end; `cause` is what the network or the parser said."""

    def __init__(self, cause: object) -> None:
        super().__init__(str(cause))
        self.cause = cause.reason if isinstance(cause, urllib.error.URLError) else cause


def distrust(error: ssl.SSLCertVerificationError, authority: str) -> str:
    """Why a certificate is not trusted, and what helps; `authority` is that where it is one of an
    authority unknown here."""
    fix = authority
    if error.verify_code in _OTHER_NAME:
        fix = "ask by a name that the certificate has"
    elif error.verify_code in _OUT_OF_TIME:
        fix = "renew it, or set this machine's clock"
    return f"{error.verify_message.rstrip('.')}; {fix}"


@dataclass(frozen=True)
class HttpAnswer:
    """`headers` are found in any spelling of their names."""

    status: int
    headers: Message
    body: bytes


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket. Its path has 107 bytes at most."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def key_header(key: str | None) -> dict[str, str]:
    """What a gateway with keys is sent. Raises Failure (exit code 2) for what is no key."""
    if not key:
        return {}
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise Failure(
            f"--key ({KEY_VARIABLE}) has a blank or a sign that no key has; give it as "
            f"'{command_line('keys add')}' printed it",
            exit_code=2,
        )
    return {KEY_HEADER: key}


def shown(address: str) -> str:
    """A server's address as a message has it: without a name and a password before its host.

    Up to the last @, as a password may have any sign where it should not.
    """
    return _BEFORE_HOST.sub(r"\1", address)


def has_login(address: str) -> bool:
    """Of a server's address, which has an @ for that alone."""
    return shown(address) != address


def kept_out(status: int) -> str | None:
    """What to do where a gateway with keys answered so; None for any other status."""
    if status == UNAUTHORIZED:
        return (
            "the gateway lets in with a key only, and none that it knows came: give --key or "
            f"{KEY_VARIABLE}; {command_line('keys add')} makes one"
        )
    if status == FORBIDDEN:
        return (
            "the key may not ask this endpoint: give another --key, or make one with "
            f"{command_line('keys add')}"
        )
    return None


def ask(
    url: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    timeout_s: float,
    most: int | None = None,
) -> HttpAnswer:
    """GET an http(s) URL, or POST a body there; of a long answer the first `most` bytes.

    Through the environment's proxies, as ClearML's own tools, but for what is on this machine.
    Raises NoAnswer.
    """
    with opened(url, body, headers, timeout_s=timeout_s) as answer:
        try:
            return HttpAnswer(answer.status, answer.headers, answer.read(most))
        except _SILENCE as error:
            raise NoAnswer(error) from error


@contextmanager
def opened(
    url: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    timeout_s: float,
) -> Iterator[Any]:
    """The same with the answer's body unread; its reader meets what breaks off. Raises NoAnswer."""
    answer: Any
    try:
        if "@" in urllib.parse.urlsplit(url).netloc:
            raise ValueError(LOGIN)
        request = urllib.request.Request(url, body)
        for name, value in (headers or {}).items():
            # A key is for the address that was named, not for where that one points.
            add = request.add_unredirected_header if name in _SECRETS else request.add_header
            add(name, value)
        begin = _past_proxies().open if _is_here(url) else urllib.request.urlopen
        answer = begin(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        answer = error
    except _SILENCE as error:
        raise NoAnswer(error) from error
    with answer:
        yield answer


def _is_here(url: str) -> bool:
    """Whether its host is this machine, of which a proxy knows nothing; it would get our keys."""
    return is_loopback(urllib.parse.urlsplit(url).hostname or "")


@functools.cache
def _past_proxies() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask_at(
    address: str,
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 3.0,
) -> HttpAnswer:
    """Ask what listens at an address of this machine, host:port or unix:/path; never a proxy.

    Raises NoAnswer.
    """
    try:
        with closing(connect(address, timeout_s)) as connection:
            connection.request(method, path, headers=dict(headers or {}))
            answer = connection.getresponse()
            return HttpAnswer(answer.status, answer.headers, answer.read())
    except _SILENCE as error:
        raise NoAnswer(error) from error


def connect(address: str, timeout_s: float) -> http.client.HTTPConnection:
    if address.startswith(UNIX):
        return UnixConnection(Path(address.removeprefix(UNIX)), timeout_s)
    return http.client.HTTPConnection(address, timeout=timeout_s)
