"""A real Chromium, driven over its DevTools protocol: what a person at the page does and sees.

Debian's package `chromium`; .ci/run installs it.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
_START_S = 60
_WAIT_S = 30.0
_OPTIONS = (
    "--headless=new", "--no-sandbox", "--no-first-run", "--disable-gpu", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions",
    "--disable-sync", "--no-default-browser-check", "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
)  # fmt: skip
_KEYS = {"Enter": 13, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "End": 35, "Home": 36}


class Tab:
    """One page. `faults` are its uncaught errors and what its policy blocked, `asked` the
    addresses that it asked for.
    """

    def __init__(self, connection: ClientConnection) -> None:
        self.faults: list[str] = []
        self.asked: list[str] = []
        self._connection = connection
        self._session: str | None = None
        self._calls = 0
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._connection.send(json.dumps(message))
        while True:
            got = json.loads(self._connection.recv(timeout=_WAIT_S))
            if got.get("id") == self._calls:
                assert "error" not in got, got
                return got["result"]
            self._note(got.get("method"), got.get("params", {}))

    def _note(self, event: str | None, told: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.asked.append(told["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.faults.append(json.dumps(told["exceptionDetails"]))
        elif event == "Log.entryAdded" and told["entry"]["source"] in ("security", "javascript"):
            self.faults.append(told["entry"]["text"])

    def evaluate(self, expression: str) -> Any:
        got = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def until(self, expression: str) -> Any:
        """Its value once that is true of the page."""
        deadline = time.monotonic() + _WAIT_S
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, f"never true: {expression}\n{self.text('body')}"
            time.sleep(0.02)
        return value

    def open(self, url: str) -> None:
        """A page anew; also where only what follows the # differs."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def text(self, selector: str) -> str:
        """What is shown there."""
        found: str = self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    def write(self, selector: str, text: str) -> None:
        """In place of what stood there, as by hand."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).select()")
        self.call("Input.insertText", text=text)

    def press(self, key: str, *, control: bool = False) -> None:
        modifiers = 2 * control
        code = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        text = {"text": "\r"} if key == "Enter" and not control else {}
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, modifiers=modifiers, **code, **more)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height,
            deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def prefer(self, scheme: str) -> None:
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)

    def picture(self) -> bytes:
        """A PNG of what is in the window."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])


@contextmanager
def browser(folder: Path) -> Iterator[Callable[[], Tab]]:
    """A Chromium with its profile below `folder`; what it gives opens a tab."""
    assert PROGRAM is not None, "no Chromium is installed: apt-get install chromium"
    profile = folder / "chromium"
    command = [PROGRAM, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"]
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with connect(_address(profile, process), max_size=2**26) as connection:
            yield lambda: Tab(connection)
            # Its other processes write to the profile until all of it has closed.
            connection.send(json.dumps({"id": 0, "method": "Browser.close"}))
            process.wait(30)
    finally:
        process.terminate()
        process.wait(30)


def _address(profile: Path, process: subprocess.Popen[bytes]) -> str:
    """Where it listens, which it writes down as soon as it does."""
    file = profile / "DevToolsActivePort"
    deadline = time.monotonic() + _START_S
    while not (file.is_file() and len(lines := file.read_text().split()) == 2):
        assert process.poll() is None, f"{PROGRAM} ended: {process.returncode}"
        assert time.monotonic() < deadline, f"{PROGRAM} does not listen"
        time.sleep(0.05)
    return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
