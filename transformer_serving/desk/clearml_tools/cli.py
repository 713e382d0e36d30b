"""Driving the unmodified clearml-serving command line, and reading what it prints."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from transformer_serving.desk.clearml_tools import warm_command
from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.clearml_tools.variables import without_clearml
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import Failure

COMMAND_S = 300
_SERVICE = "CLEARML_SERVING_TASK_ID"
# What clearml-serving takes a service for that does not say.
_UNVERSIONED = "1.0.0"
_ID = r"([0-9a-f]{32})"
# What the SDK logs of a file that was not taken; the command goes on and ends well.
_NOT_TAKEN = re.compile(r"Exception encountered while uploading (.*)")
_ANSWER = re.compile(r'\((\d{3})\): .*"result_msg":"([^"]*)"')


@dataclass(frozen=True)
class ClearmlCli:
    """The command line against one ClearML server; `serving_id` names the serving service.

    `environment` names the server, alone: of the caller's nothing is added that is ClearML's.
    """

    environment: Mapping[str, str]
    serving_id: str | None = None

    def run(
        self, *arguments: str, timeout_s: float = COMMAND_S,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> str:  # fmt: skip
        """Run one command; its output. Raises Failure with the last line when it fails."""
        service = ["--id", self.serving_id] if self.serving_id else []
        command = warm_command.taken(self._variables())
        own = {name: value for name, value in self.environment.items() if name == _SERVICE}
        try:
            ClearmlApi(self.environment).wait()
            code, output = command.call([*service, *arguments], {**own, **variables}, timeout_s)
        except BaseException as error:
            command.end()
            if not isinstance(error, TimeoutError):
                raise
            raise Failure(
                f"clearml-serving {' '.join(arguments[:2])} did not end within {timeout_s:.0f} s; "
                f"look: {command_line('doctor')}"
            ) from error
        warm_command.keep(command)
        if code or "\nError" in f"\n{output}":
            lines = output.strip().splitlines() or ["no output"]
            raise Failure(f"clearml-serving {' '.join(arguments[:2])} failed: {lines[-1]}")
        return output

    def prepare(self) -> None:
        """Have its process begin beside what comes before the first command."""
        warm_command.keep(warm_command.taken(self._variables()))

    def _variables(self) -> dict[str, str]:
        """Of a process for this server, whichever service a call is of: it is made before one."""
        whole = {**without_clearml(os.environ), **self.environment}
        return {name: value for name, value in whole.items() if name != _SERVICE}

    def check_version(self) -> None:
        """Raises Failure (exit code 2) for a service that these commands would not change: one of
        another minor version, of which they ask whoever sits before them.
        """
        task = ClearmlApi(self.environment).call("tasks.get_by_id", task=self.serving_id)["task"]
        made_by = str((task.get("runtime") or {}).get("version") or _UNVERSIONED)
        here = version("clearml-serving")
        if made_by.split(".")[:2] != here.split(".")[:2]:
            raise Failure(
                f"the serving service is of clearml-serving {made_by}, and here is {here}, whose "
                "commands change none of another minor version; use an environment with that "
                "version, or make a service of this one: clearml-serving create --name NAME, with "
                "its id in CLEARML_SERVING_TASK_ID",
                exit_code=2,
            )

    def name_model(self, endpoint: str, model_id: str) -> None:
        """Among the service's input models, as `model add` does first. Raises Failure."""
        ClearmlApi(self.environment).call(
            "tasks.add_or_update_model",
            task=self.serving_id, name=endpoint, type="input", model=model_id,
        )  # fmt: skip

    def create_service(self, name: str) -> str:
        return _find(rf"id={_ID}", self.run("create", "--name", name), "the service's id")

    def upload_model(
        self, name: str, project: str, folder: Path, destination: str, *,
        timeout_s: float = COMMAND_S,
    ) -> str:  # fmt: skip
        """Upload a model folder; its model id.

        `destination` must be new for every upload: clearml-serving names an upload by its file
        alone, and a second one of that name would replace the first one's bytes. Raises Failure
        with the file server's words where it did not take the file.
        """
        # The SDK packs the folder into a file there, which stays where the command is killed.
        with TemporaryDirectory(prefix="transformer-serving-") as scratch:
            output = self.run(
                "model", "upload", "--name", name, "--project", project, "--framework", "onnx",
                "--path", str(folder), "--destination", destination, timeout_s=timeout_s,
                variables={"TMPDIR": scratch},
            )  # fmt: skip
        model_id = _find(rf"Model ID={_ID}", output, "the model's id")
        refusal = upload_refusal(output)
        if refusal is not None:
            with suppress(Failure):
                ClearmlApi(self.environment).call("models.delete", model=model_id, force=True)
            raise Failure(f"clearml-serving model upload failed: {refusal}")
        return model_id


def upload_refusal(output: str) -> str | None:
    """Why the file server did not take a file, from what the command printed."""
    found = _NOT_TAKEN.search(output)
    if found is None:
        return None
    answer = _ANSWER.search(found.group(1))
    if answer is None:
        return found.group(1)[:300]
    return f"the file server answered {answer.group(1)}, {answer.group(2)}"


def _find(pattern: str, output: str, what: str) -> str:
    found = re.search(pattern, output)
    if found is None:
        raise Failure(f"clearml-serving did not print {what}")
    return found.group(1)


def listed_endpoints(output: str) -> dict[str, dict[str, object]]:
    """The endpoints that `clearml-serving model list` printed, by name."""
    found = re.search(r"^Endpoints:\n(.*?)^Model Monitoring:", output, re.DOTALL | re.MULTILINE)
    if found is None:
        raise Failure("clearml-serving model list did not print the endpoints")
    endpoints: dict[str, dict[str, object]] = json.loads(found.group(1))
    return endpoints


def no_route(serving_id: str, endpoint: str) -> str:
    """The command that has an endpoint's canary route lead to the endpoint itself alone.

    `model remove` takes the endpoint of that name first, and leaves the route.
    """
    return (
        f"clearml-serving --id {serving_id} model canary --endpoint {shlex.quote(endpoint)} "
        f"--weights 1 --input-endpoints {shlex.quote(endpoint)}"
    )


def listed_canaries(output: str) -> dict[str, dict[str, object]]:
    """The canary routes that `clearml-serving model list` printed, by name."""
    found = re.search(r"^Canary:\n(.*)", output, re.DOTALL | re.MULTILINE)
    if found is None:
        raise Failure("clearml-serving model list did not print the canary routes")
    routes: dict[str, dict[str, object]]
    routes, _ = json.JSONDecoder().raw_decode(found.group(1))
    return routes
