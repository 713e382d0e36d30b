"""The cluster's API, asked with JSON over TLS by a token."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlencode

_TIMEOUT_S = 30.0


class Api:
    """Paths are the API's own, such as /api/v1/nodes."""

    def __init__(self, url: str, token: str, context: ssl.SSLContext) -> None:
        self.url, self.token, self._context = url, token, context

    def get(self, path: str, **query: str) -> Any:
        """The object or list; None where there is none."""
        asked = f"{path}?{urlencode(query)}" if query else path
        try:
            return self._ask("GET", asked)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.get(path, **query)["items"]
        return rows

    def create(self, path: str, body: dict[str, Any]) -> None:
        self._ask("POST", path, body)

    def delete(self, path: str) -> None:
        self._ask("DELETE", path)

    def ready(self) -> bool:
        try:
            return bool(self._text("/readyz") == "ok")
        except OSError:
            return False

    def _text(self, path: str) -> str:
        return self._open(urllib.request.Request(self.url + path)).decode()

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        sent = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        request = urllib.request.Request(self.url + path, sent, headers, method=method)
        return json.loads(self._open(request))

    def _open(self, request: urllib.request.Request) -> bytes:
        request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=self._context) as answer:
            return bytes(answer.read())
