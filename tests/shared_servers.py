"""What the tests of a folder share, servers above all, ends with the last of them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Generator
from typing import Any

import pytest

# Files that share a stack, by the fixture that starts it. That of the demo is one in a run: it has
# its models in the checkout's own folder. Those of make test that share `plain` stand beside it.
# That of every task converts and deploys for minutes.
STACKS = {
    "stack": (
        "answers", "clearml_commands", "commands", "demo_folder", "desk_folder", "notebooks",
        "readme", "show_and_adopt", "triton_ports",
    ),
    "every_task": ("api_page", "openapi_answers", "pages_in_a_browser"),
}  # fmt: skip
SHARING = {
    f"tests/stack/test_{name}.py": fixture for fixture, names in STACKS.items() for name in names
}
# In containers they share a stack, and what they measure is written down by one process.
SHARING |= {
    f"tests/compose/test_{name}.py": "containers" for name in ("images", "stack", "stack_doctor")
}


class SharedServers:
    """A plugin: of what belongs to the whole session pytest tells no conftest below its root.

    Until the end of the session they would stand by, and look for changes, beside all other tests.
    """

    def __init__(self) -> None:
        self._serving: list[tuple[pytest.FixtureDef[Any], pytest.FixtureRequest]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """Remember what has an end."""
        made = yield
        if fixturedef.scope == "session" and inspect.isgeneratorfunction(fixturedef.func):
            self._serving.append((fixturedef, request))
        return made

    # The last of the wrappers: what an end prints is captured as the test's.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """It ends where another folder's tests are next, the last made first."""
        ended = yield
        for fixture, request in reversed(self._serving.copy()):
            if nextitem and not _is_asked_by(fixture, nextitem):
                self._serving.remove((fixture, request))
                fixture.finish(request)
        return ended


def _is_asked_by(fixture: pytest.FixtureDef[Any], item: pytest.Item) -> bool:
    file = item.nodeid.partition("::")[0]
    # One process has the files of such a stack one after the other only where there are several.
    grouped = "PYTEST_XDIST_WORKER" in os.environ and fixture.argname in STACKS
    if grouped and file.startswith("tests/stack/") and SHARING.get(file) != fixture.argname:
        return False
    # A plugin's is everybody's.
    return fixture.node is None or fixture.node in item.iter_parents()
