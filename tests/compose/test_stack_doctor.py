"""doctor beside a stack in containers: each of them is asked, by the file that the stack has."""

from __future__ import annotations

import json
import subprocess

from tests.compose.conftest import CLI, ROOT, Compose
from tests.compose.machine import inspected


def test_every_container_is_asked(stack: Compose) -> None:
    """The file's variables of the ClearML server are empty; the shell has the local profile's."""
    environment = {
        **stack.environment(),
        "COMPOSE_FILE": ":".join(f"compose/{name}" for name in stack.files),
        "COMPOSE_PROJECT_NAME": stack.project,
    }
    state = stack.env_file.parent / "no-embedded-stack"
    done = subprocess.run(
        [CLI, "doctor", "--env-file", stack.env_file, "--state", state, "--json"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    rows = json.loads(done.stdout)["findings"]
    checks = ("api", "credentials", "files", "clock", "gateway")
    assert {row["status"] for row in rows if row["check"] in checks} == {"ok"}
    said = [row for row in rows if row["check"] == "containers"]
    for service in ("inference", "triton"):
        for container in stack.containers(service):
            name = str(inspected(container)["Name"]).removeprefix("/")
            asked = [row["status"] for row in said if row["why"].startswith(f"{name}: CLEARML_")]
            assert asked == ["ok", "ok"], said
