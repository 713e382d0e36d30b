"""The table of checks, in the order in which they are made and printed.

Tested by tests/doctor/test_command.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from transformer_serving.desk.doctor import (
    clearml,
    containers,
    control_plane,
    gateway,
    gpu,
    log_lines,
    machine,
    parts,
    services,
    triton,
)
from transformer_serving.desk.doctor.finding import Findings, Named
from transformer_serving.desk.doctor.subject import Subject


@dataclass(frozen=True)
class Check:
    """One row: what is looked at, and what makes it a failure."""

    name: str
    looks_at: str
    fails_when: str
    make: Callable[[Subject], Findings]


CHECKS = (
    Check(
        "python",
        "the version of Python that runs the kit",
        "it is not one of the lock's",
        machine.check_python,
    ),
    Check(
        "libpython",
        "the shared library of that Python, which the stub of Triton's Python backend loads",
        "there is none; skipped beside --env-file",
        machine.check_libpython,
    ),
    Check(
        "open-files",
        "how many files a process may hold open (ulimit -Hn)",
        "it is less than the embedded stack needs, 1024; skipped beside --env-file",
        machine.check_files,
    ),
    Check(
        "packages",
        "clearml, clearml-serving, nvidia-pytriton and openvino-genai as installed",
        "one is missing or not the lock's version",
        machine.check_packages,
    ),
    Check(
        "ports",
        "the ports of the embedded stack",
        "another program listens on one, or had that of the controller's figures as it began",
        machine.check_ports,
    ),
    Check(
        "parts",
        "each part of the embedded stack, as status asks it",
        "one is not well, or what keeps them does not answer, or is gone without 'down'",
        parts.check_parts,
    ),
    Check(
        "disk",
        "free space where the stack keeps its data",
        "less than 2 GiB; a warning below 4 GiB",
        machine.check_disk,
    ),
    Check(
        "data",
        "every page of the embedded control plane's database, and the models' files",
        "one cannot be read, or is of a newer kit",
        control_plane.check_data,
    ),
    Check(
        "docker",
        "the docker command and its daemon",
        "never: a warning when the daemon does not answer, and for one before 28.0 where "
        "--env-file names no keys",
        containers.check_docker,
    ),
    Check(
        "compose",
        "the version of docker compose",
        f"it is older than {containers.COMPOSE_MIN}; a warning without the plugin",
        containers.check_compose,
    ),
    Check(
        "driver",
        "the NVIDIA driver (nvidia-smi, else /proc/driver/nvidia/version)",
        "it is older than the image pin needs; a warning for a branch that serves on data-center "
        "GPUs only",
        gpu.check_driver,
    ),
    Check(
        "gpu",
        "each GPU's compute capability",
        "it is below what the image pin needs; there is a driver, and nvidia-smi fails or names no "
        "GPU; a warning where what the pin needs is unknown",
        gpu.check_gpu,
    ),
    Check(
        "api",
        "CLEARML_API_HOST",
        "nothing answers, or with 500 and above, or not as the ClearML API",
        clearml.check_api,
    ),
    Check(
        "credentials",
        "CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY",
        "one is missing, or the API refuses them or has another error; a warning where --env-file "
        "leaves one out",
        clearml.check_credentials,
    ),
    Check(
        "files",
        "CLEARML_FILES_HOST",
        "nothing answers, or with 500 and above",
        clearml.check_files,
    ),
    Check(
        "clock",
        "the date in the API's answers against this machine's clock",
        "they are more than 60 s apart; a warning above 5 s",
        clearml.check_clock,
    ),
    Check(
        "variables",
        "polls, grace and seconds to stop of --env-file, as a Triton container reads them",
        "a container with them ends at its start",
        containers.check_variables,
    ),
    Check(
        "containers",
        "API and file server from inside each running container of the compose stack",
        "a container does not reach one",
        containers.check_containers,
    ),
    Check(
        "gateway",
        "the front door at CLEARML_DEFAULT_BASE_SERVE_URL, and whether it lets the key in",
        "nothing answers, it does not say whether it lets the caller in, or it refuses the key; a "
        "warning while it is not ready, and for a key that is for some endpoints or for figures "
        "only; skipped where its address is an --env-file's, nobody listens there and no compose "
        "stack runs here",
        gateway.check_gateway,
    ),
    Check(
        "triton",
        "the version of the running Triton, and whether its control is closed",
        "it does not answer, or is not the pin's; a warning when a Triton's control is open, and "
        "for one at a port that a request ends",
        triton.check_triton,
    ),
    Check(
        "endpoints",
        "each endpoint of the controller's state, or the one of --endpoint, with its engine",
        "it is not ready, missing, or its engine does not fit, or the controller no longer writes; "
        "a warning when its last good bundle serves on, or what was served before stays",
        triton.check_endpoints,
    ),
    Check(
        "services",
        "the serving services of the embedded control plane, canary routes, and the settings that "
        "name an endpoint",
        "never: a warning for endpoints of a service that is not served, and where a route or a "
        "setting names an endpoint that is not there",
        services.check_services,
    ),
    Check(
        "bundle",
        "the bundle of --bundle, through the gate of deploy; or an engine's file, or a folder "
        "with one, which is described",
        "deploy would refuse it, or its plan is for another GPU; a file is cut, damaged or no "
        "engine; a warning for a whole one that the image pin does not load",
        triton.check_bundle,
    ),
    Check(
        "log",
        "the lines of --log",
        "one is a known error of Triton or TensorRT; a warning where there are none",
        log_lines.check_log,
    ),
)


def examine(subject: Subject) -> Iterator[Named]:
    """Make every check; each says at least one thing."""
    for check in CHECKS:
        for finding in check.make(subject):
            yield Named(check.name, finding)
