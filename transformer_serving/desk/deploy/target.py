"""Where to deploy: the ClearML tools, file server and front door of one stack, and its lock.

Tested by tests/deploy/test_target.py, tests/stack/test_clearml_commands.py and
tests/stack/test_desk_folder.py.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.clearml_tools.cli import ClearmlCli
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.deploy.golden import Reply, ask
from transformer_serving.desk.deploy.refusals import Refusals
from transformer_serving.desk.deploy.registry import ModelRegistry
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.file_lock import taken, wait_for
from transformer_serving.desk.http import kept_out, key_header
from transformer_serving.desk.step_report import StepReport
from transformer_serving.desk.user_cache import user_cache

# What names a ClearML server, a serving service and its front door, where there is no stack.
TARGET_VARIABLES = (
    "CLEARML_API_HOST",
    "CLEARML_API_ACCESS_KEY",
    "CLEARML_API_SECRET_KEY",
    "CLEARML_FILES_HOST",
    "CLEARML_SERVING_TASK_ID",
    "CLEARML_DEFAULT_BASE_SERVE_URL",
)
_LOOK_S = 0.2


@dataclass(frozen=True)
class DeployTarget:
    """Where to deploy: the ClearML server's tools, its file server, the front door, a lock file.

    `key` is for a front door that has keys; `triton` is the version of the embedded stack's, None
    for another server's; `state` the folder by which commands find the one or the other.
    """

    cli: ClearmlCli
    files_host: str
    serve_url: str
    lock: Path
    key: str | None = None
    triton: str | None = None
    state: Path | None = None

    def command(self, words: str) -> str:
        """The line of this command line that asks the same target."""
        return command_line(words, self.state)

    @property
    def plans_lock(self) -> Path:
        """Of who writes a rollout's plan, which waits for no deploy."""
        return self.lock.with_name("rollouts.lock")

    @property
    def look(self) -> str:
        """Where the state of its endpoints stands: `status` knows the embedded stack alone."""
        if self.triton is not None:
            return self.command("status")
        return "/var/lib/transformer-serving/controller.json in the Triton container"

    def url(self, endpoint: str) -> str:
        return f"{self.serve_url.rstrip('/')}/{endpoint}"

    def ask(self, endpoint: str, request: dict[str, Any]) -> Reply:
        """Raises Failure (exit code 2) where the front door does not let in."""
        reply = ask(self.url(endpoint), request, headers=key_header(self.key))
        if reason := kept_out(reply.status):
            raise Failure(f"{self.url(endpoint)}: {reason}", exit_code=2)
        return reply

    def registry(self) -> ModelRegistry:
        return ModelRegistry(ClearmlApi(self.cli.environment), self.cli.serving_id or "")

    def refusals(self, model_id: str, *, earlier: bool = False) -> Refusals:
        api, serving_id = ClearmlApi(self.cli.environment), self.cli.serving_id or ""
        return Refusals(api, serving_id, model_id, earlier=earlier)


def target_of(environment: Mapping[str, str]) -> DeployTarget | None:
    """The ClearML server and front door that an environment names; None when it does not."""
    if not all(environment.get(name) for name in TARGET_VARIABLES):
        return None
    return DeployTarget(
        ClearmlCli(environment, environment["CLEARML_SERVING_TASK_ID"]),
        environment["CLEARML_FILES_HOST"],
        environment["CLEARML_DEFAULT_BASE_SERVE_URL"],
        service_lock(environment["CLEARML_SERVING_TASK_ID"]),
    )


def service_lock(serving_id: str) -> Path:
    """The lock file of a service on a ClearML server of one's own: one for all commands of this
    user, in any folder. That of the embedded stack lies in its folder.

    The id alone names it: of the same server there are several addresses.
    """
    name = hashlib.sha256(serving_id.encode()).hexdigest()[:12]
    return user_cache() / "services" / name / "deploy.lock"


@contextmanager
def one_at_a_time(
    lock: Path, patience_s: float | None = None, report: StepReport = lambda step: None
) -> Iterator[None]:
    """clearml-serving's edits are not atomic; one deploy of this user writes at a time.

    `report` hears of it where another one does. Raises Failure (exit code 2) where the lock cannot
    be had, and (1) where it is not free within `patience_s`; None waits without end.
    """
    try:
        lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = lock.open("w")
    except OSError as error:
        raise Failure(
            f"{lock}, which keeps two deploys apart, cannot be written ({error.strerror}); make "
            "its folder writable, or for a ClearML server of your own set XDG_CACHE_HOME to one "
            "that is",
            exit_code=2,
        ) from error
    with file:
        if not taken(file):
            report("waiting for another deploy of this machine to end")
            _wait_for(file, patience_s)
        yield


def _wait_for(file: IO[str], patience_s: float | None) -> None:
    if patience_s is None:
        wait_for(file)
        return
    deadline = time.monotonic() + patience_s
    while not taken(file):
        if time.monotonic() > deadline:
            raise Failure(f"another deploy of this machine did not end within {patience_s:.0f} s")
        time.sleep(_LOOK_S)
