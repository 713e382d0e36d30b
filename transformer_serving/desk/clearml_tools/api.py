"""The ClearML API from the desk: wait for it, log in, call a method, fetch a file."""

from __future__ import annotations

import base64
import json
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from transformer_serving.desk.failure import Failure

_VERSION = "v2.23"
_TIMEOUT_S = 30.0
_WAIT_S = 10.0
_PAUSE_S = 0.5


class ClearmlApi:
    """One ClearML server, by the CLEARML_* variables that ClearML's own tools read.

    Every method raises Failure when the server does not do what it is asked.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.host = environment.get("CLEARML_API_HOST", "").rstrip("/")

    def wait(self, seconds: float = _WAIT_S) -> None:
        """Return once the server answers; ClearML's own tools would wait for it without end."""
        deadline = time.monotonic() + seconds
        while not self._answers(max(1.0, deadline - time.monotonic())):
            if time.monotonic() > deadline:
                raise Failure(
                    f"the ClearML server at {self.host} did not answer within {seconds:.0f} s; "
                    "start it, or look: transformer-serving status, transformer-serving doctor"
                )
            time.sleep(_PAUSE_S)

    def call(self, method: str, **fields: Any) -> dict[str, Any]:
        """The `data` of the method's answer."""
        request = self._request(f"/{_VERSION}/{method}", json.dumps(fields).encode())
        return self._data(request, method)

    def download(self, address: str, target: Path) -> None:
        """Fetch a file of the file server into `target`."""
        if not address.startswith(("http://", "https://")):
            scheme = address.split(":", 1)[0]
            raise Failure(f"the file lies in {scheme} storage, which is not read from here")
        request = urllib.request.Request(address, headers=self._bearer)
        try:
            with (
                urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer,
                target.open("wb") as file,
            ):
                shutil.copyfileobj(answer, file, 1 << 20)
                expected = answer.headers.get("Content-Length")
        except (OSError, ValueError) as error:
            raise Failure(f"{address} could not be fetched: {error}") from error
        if expected is not None and target.stat().st_size != int(expected):
            raise Failure(f"{address} could not be fetched: it ended early")

    def _answers(self, seconds: float) -> bool:
        try:
            with urllib.request.urlopen(f"{self.host}/debug.ping", timeout=min(seconds, 5.0)):
                return True
        except urllib.error.HTTPError:
            return True
        except (OSError, ValueError):
            return False

    @cached_property
    def _bearer(self) -> dict[str, str]:
        keys = (
            self._environment.get("CLEARML_API_ACCESS_KEY", ""),
            self._environment.get("CLEARML_API_SECRET_KEY", ""),
        )
        basic = base64.b64encode(":".join(keys).encode()).decode()
        request = urllib.request.Request(
            f"{self.host}/auth.login", headers={"Authorization": f"Basic {basic}"}
        )
        return {"Authorization": f"Bearer {self._data(request, 'auth.login')['token']}"}

    def _request(self, path: str, body: bytes) -> urllib.request.Request:
        headers = {"Content-Type": "application/json", **self._bearer}
        return urllib.request.Request(f"{self.host}{path}", body, headers, method="POST")

    def _data(self, request: urllib.request.Request, method: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                data: dict[str, Any] = json.loads(answer.read())["data"]
                return data
        except urllib.error.HTTPError as error:
            raise Failure(f"{method} was refused by {self.host} with {error.code}") from error
        except (OSError, ValueError, KeyError) as error:
            raise Failure(f"{method}: no usable answer from {self.host}: {error}") from error
