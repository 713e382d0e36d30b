"""The ClearML API from the desk: wait for it, log in, call a method, fetch a file.

Tested by tests/clearml_tools/test_api.py and tests/stack/test_clearml_commands.py.
"""

from __future__ import annotations

import base64
import json
import shutil
import ssl
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from transformer_serving.contract.addresses import shown_address
from transformer_serving.contract.error_line import MOST, one_line
from transformer_serving.contract.worker.sdk_patience import NO_API_FIX
from transformer_serving.desk import http
from transformer_serving.desk.clearml_tools import storage
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import Failure

_VERSION = "v2.23"
_TIMEOUT_S = 30.0
_WAIT_S = 10.0
_PAUSE_S = 0.5
_PORTS = {"http": 80, "https": 443}


class ClearmlApi:
    """One ClearML server, by the CLEARML_* variables that ClearML's own tools read.

    Every method raises Failure when the server does not do what it is asked, also where it says
    nothing for `timeout_s`.
    """

    def __init__(self, environment: Mapping[str, str], timeout_s: float = _TIMEOUT_S) -> None:
        self._environment = environment
        self._timeout_s = timeout_s
        self.host = environment.get("CLEARML_API_HOST", "").rstrip("/")

    def wait(self, seconds: float = _WAIT_S) -> None:
        """Return once the server answers; ClearML's own tools would wait for it without end."""
        deadline = time.monotonic() + seconds
        while (cause := self._silence(max(1.0, deadline - time.monotonic()))) is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                # No time changes that.
                said = http.distrust(
                    cause,
                    "name the file of its authority in SSL_CERT_FILE, and for ClearML's own tools "
                    "in REQUESTS_CA_BUNDLE",
                )
                raise Failure(
                    f"the certificate of the ClearML server at {self.host} is not trusted here: "
                    f"{said}"
                )
            if time.monotonic() > deadline:
                raise Failure(
                    f"the ClearML server at {self.host} did not answer within {seconds:.0f} s: "
                    f"{one_line(cause, MOST)}; "
                    f"start it, or look: {command_line('status')}, {command_line('doctor')}"
                )
            time.sleep(_PAUSE_S)

    def log_in(self) -> None:
        """For who goes on with ClearML's own tools, which say less of a refusal, and late."""
        _ = self._bearer

    def call(self, method: str, **fields: Any) -> dict[str, Any]:
        """The `data` of the method's answer."""
        headers = {"Content-Type": "application/json", **self._bearer}
        return self._data(f"/{_VERSION}/{method}", method, headers, json.dumps(fields).encode())

    def download(self, address: str, target: Path) -> None:
        """Fetch a file of the file server into `target`; from elsewhere without our credentials.

        What is not on the web comes as ClearML's SDK reads it, with the keys that it has there.
        """
        if not address.startswith(("http://", "https://")):
            storage.fetch(address, target, self._environment)
            return
        named = shown_address(address)
        headers = self._bearer if _server(address) in self._own_servers() else {}
        try:
            with (
                http.opened(address, headers=headers, timeout_s=self._timeout_s) as answer,
                target.open("wb") as file,
            ):
                if answer.status >= 300:
                    raise Failure(f"{named} could not be fetched: status {answer.status}")
                shutil.copyfileobj(answer, file, 1 << 20)
                expected = answer.headers.get("Content-Length")
        except (OSError, ValueError) as error:
            raise Failure(f"{named} could not be fetched: {error}") from error
        if expected is not None and target.stat().st_size != int(expected):
            raise Failure(f"{named} could not be fetched: it ended early")

    def _own_servers(self) -> set[tuple[str, str | None, int | None]]:
        """Whoever may write to a project says where a model's file lies."""
        hosts = (self._environment.get("CLEARML_FILES_HOST", ""), self.host)
        return {_server(host) for host in hosts if host}

    def _silence(self, seconds: float) -> object:
        """Why no answer came; None where one did."""
        try:
            http.ask(f"{self.host}/debug.ping", timeout_s=min(seconds, 5.0))
        except http.NoAnswer as error:
            return error.cause
        return None

    @cached_property
    def _bearer(self) -> dict[str, str]:
        keys = (
            self._environment.get("CLEARML_API_ACCESS_KEY", ""),
            self._environment.get("CLEARML_API_SECRET_KEY", ""),
        )
        basic = base64.b64encode(":".join(keys).encode()).decode()
        headers = {"Authorization": f"Basic {basic}"}
        token = self._data("/auth.login", "auth.login", headers).get("token")
        if token is None:
            raise self._no_api("auth.login")
        return {"Authorization": f"Bearer {token}"}

    def _data(
        self, path: str, method: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> dict[str, Any]:
        try:
            answer = http.ask(f"{self.host}{path}", body, headers, timeout_s=self._timeout_s)
            if answer.status >= 300:
                said = _reason(answer.body)
                raise Failure(f"{method} was refused by {self.host} with {answer.status}{said}")
        except (OSError, ValueError) as error:
            raise Failure(f"{method}: no usable answer from {self.host}: {error}") from error
        data = _data_of(answer.body)
        if data is None:
            raise self._no_api(method)
        return data

    def _no_api(self, method: str) -> Failure:
        return Failure(f"{method}: {self.host} does not answer as the ClearML API; {NO_API_FIX}")


def _data_of(body: bytes) -> dict[str, Any] | None:
    """None where it is no answer of the API."""
    try:
        data = json.loads(body)["data"]
    except (ValueError, KeyError, TypeError):
        return None
    return data if isinstance(data, dict) else None


def _reason(body: bytes) -> str:
    """What the server says of a refusal, as the end of a line; "" where it says nothing."""
    try:
        said = json.loads(body)["meta"]["result_msg"]
    except (ValueError, KeyError, TypeError):
        return ""
    return f": {one_line(said, MOST)}" if said else ""


def _server(address: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port. Raises Failure for what is no address."""
    try:
        parts = urlsplit(address)
        return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError as error:
        raise Failure("a file's address or CLEARML_FILES_HOST is no address of http") from error
