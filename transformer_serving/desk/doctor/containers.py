"""Checks of Docker and compose, and of ClearML as the running containers see it.

Tested by tests/doctor/test_faults.py and tests/compose/test_stack_doctor.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_serving.contract.gate.release import older, parts
from transformer_serving.desk.compose.variables import HOST_NAME, INFERENCE, TRITON
from transformer_serving.desk.doctor.finding import Finding, Findings, failure, ok, skipped, warning
from transformer_serving.desk.doctor.subject import Subject
from transformer_serving.desk.http import LOGIN

# 2.24.4 has `!override`, by which the compose files drop what a file below them asks for; `config
# SERVICE` of 2.24.7 shows every service, and roll.sh asks it which that one depends on.
COMPOSE_MIN = "2.25.0"
# Docker before it lets hosts of the same segment in to what is published on the loopback: issue
# 45610 of moby.
_LOOPBACK_MIN = "28.0"
_KEYS = "TRANSFORMER_SERVING_KEYS_FOLDER"
_NUMBER = re.compile(r"v?(\d+\.\d+\.\d+)")
_INSTALL = "install Docker Engine and its compose plugin; only the compose stack needs them"
NO_STACK = "no compose stack"
# What OpenSSL calls a certificate of an authority unknown there, of another name or past its time.
_DISTRUST = "CERTIFICATE_VERIFY_FAILED"
# What compose gives where the file has none.
_TRITONS = {
    row.name: row.default for row in (*INFERENCE.variables, *TRITON.variables) if row.default
}

# Where an image of ours has its entrypoint.
ENTRYPOINT = "/opt/transformer-serving/entrypoint.py"
# Runs in a container's own Python, 3.8 or newer: asks each address that its environment names, past
# a proxy where its program does, which has that of the entrypoint and not of the environment.
PROBE = """
import json, os, runpy, urllib.error, urllib.request
try:
    runpy.run_path("ENTRYPOINT")["leave_out_proxies"](os.environ)
except Exception:
    pass  # None, or of another version of the kit: what the environment says holds.
found = {}
for name, path in (("CLEARML_API_HOST", "/debug.ping"), ("CLEARML_FILES_HOST", "/")):
    host = os.environ.get(name)
    if not host or not host.startswith("http"):
        found[name] = "unset" if not host else "ok"
        continue
    if "@" in host:
        found[name] = "LOGIN"
        continue
    try:
        urllib.request.urlopen(host.rstrip("/") + path, timeout=4).close()
        found[name] = "ok"
    except urllib.error.HTTPError as error:
        found[name] = "ok" if error.code < 500 else "answers %d" % error.code
    except Exception as error:
        found[name] = str(getattr(error, "reason", error))
print(json.dumps(found))
""".replace("LOGIN", LOGIN).replace("ENTRYPOINT", ENTRYPOINT)


def check_docker(subject: Subject) -> Findings:
    client = subject.run("docker", "--version")
    if client.code is None:
        yield skipped("docker is not installed; only the compose stack needs it")
        return
    server = subject.run("docker", "version", "--format", "{{.Server.Version}}")
    if server.code == 0:
        yield _engine(client.output, server.output, subject)
    else:
        yield warning(
            "the docker command is here, but its daemon does not answer",
            "start it: systemctl start docker; or join its group: usermod -aG docker USER",
        )


def _engine(client: str, version: str, subject: Subject) -> Finding:
    # Podman answers to that name, too, and has numbers of its own; a build of one's own has none.
    if "Docker version" not in client or not parts(version):
        return ok(f"{client.strip()}; its server's version is {version or 'not told'}")
    if subject.from_file and older(version, _LOOPBACK_MIN) and not subject.environment.get(_KEYS):
        return warning(
            f"Docker {version} is older than {_LOOPBACK_MIN}: hosts of this machine's own network "
            "may reach what is published on 127.0.0.1, and the front door has no keys",
            f"upgrade Docker Engine to {_LOOPBACK_MIN} or newer; or set {_KEYS}, for the front "
            "door alone: docs/compose.md, 'On a network address'",
        )
    return ok(f"Docker {version}")


def check_compose(subject: Subject) -> Findings:
    if subject.run("docker", "--version").code is None:
        yield skipped("docker is not installed")
        return
    compose = subject.run("docker", "compose", "version")
    found = _NUMBER.search(compose.output) if compose.code == 0 else None
    if found is None:
        yield warning("docker has no compose plugin", _INSTALL)
    elif older(found[1], COMPOSE_MIN):
        yield failure(
            f"docker compose {found[1]} is older than {COMPOSE_MIN}, which the compose files need",
            f"upgrade the compose plugin to {COMPOSE_MIN} or newer",
        )
    else:
        yield ok(f"docker compose {found[1]}")


def check_containers(subject: Subject) -> Findings:
    """API and file server, asked from inside every running container that names them."""
    containers = _containers(subject)
    if not containers:
        yield skipped(NO_STACK)
    for container in containers:
        yield from _container(subject, container)


def check_variables(subject: Subject) -> Findings:
    """As a Triton container reads them at its start, which ends it where one does not fit."""
    # Desk commands that start no Triton do without its modules.
    from transformer_serving.engine.container_commands import controller_command, exit_seconds

    if not subject.from_file:
        yield skipped("no --env-file")
        return
    environment = {**_TRITONS, **subject.environment}
    refused = False
    for read in (exit_seconds, lambda given: controller_command(given, Path())):
        try:
            read(environment)
        except ValueError as error:
            refused = True
            yield failure(
                f"a Triton container ends at its start: {error}",
                "correct it in the file of --env-file",
            )
    if not refused:
        yield ok("Triton's containers start with the file's polls, grace and seconds to stop")


def _containers(subject: Subject) -> list[str]:
    """By name, those that run of the compose project of this folder or of COMPOSE_FILE."""
    listed = subject.run("docker", "compose", "ps", "--status", "running", "--format", "json")
    if listed.code != 0:
        return []
    # One on each line; what compose warns of is none.
    rows = [row for line in listed.output.splitlines() if (row := _json(line))]
    return sorted(str(row["Name"]) for row in rows)


def _container(subject: Subject, container: str) -> Findings:
    ran = subject.run("docker", "exec", container, "python3", "-I", "-c", PROBE)
    answers = _json(ran.output) if ran.code == 0 else None
    if answers is None:
        yield skipped(f"{container}: it has no Python to ask with")
        return
    asked = {name: said for name, said in answers.items() if said != "unset"}
    if not asked:
        yield skipped(f"{container}: its environment names no ClearML server")
    for name, said in asked.items():
        yield _asked(container, name, str(said))


def _asked(container: str, name: str, said: str) -> Finding:
    if said == "ok":
        return ok(f"{container}: {name} answers from inside")
    why = f"{container}: {name} is not reachable from inside: {said}"
    if _DISTRUST in said:
        return failure(
            why,
            "give the container the file of the server's authority, named in REQUESTS_CA_BUNDLE "
            "and SSL_CERT_FILE (docs/compose.md, 'With your ClearML server'), and address the "
            "server by a name that its certificate has",
        )
    return failure(
        why,
        "localhost in a container is the container: set an address that containers reach, such as "
        f"http://{HOST_NAME}:PORT, where a server of this machine listens on its address, or the "
        "service's name",
    )


def _json(text: str) -> Mapping[str, Any] | None:
    try:
        values = json.loads(text)
    except ValueError:
        return None
    return values if isinstance(values, dict) else None
