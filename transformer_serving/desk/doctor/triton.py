"""Checks of a running Triton and of the engines that it is to load.

Tested by tests/doctor/test_faults.py and tests/doctor/test_open_triton.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.gate.refusals import refusals
from transformer_serving.contract.gate.server_facts import (
    MISSING,
    ServerFacts,
    installed,
    visible_gpus,
)
from transformer_serving.contract.manifest import FILE_NAME, read_manifest
from transformer_serving.contract.pip_line import pip_line
from transformer_serving.contract.settings.preprocess import STOCK_GRPC, triton_http
from transformer_serving.contract.settings.triton_addresses import read_addresses
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.doctor.engine_file import check_engine_file, engine_files
from transformer_serving.desk.doctor.finding import Finding, Findings, failure, ok, skipped, warning
from transformer_serving.desk.doctor.http import Answer, ask_at
from transformer_serving.desk.doctor.log_lines import explain
from transformer_serving.desk.doctor.services import why_not_of_controller
from transformer_serving.desk.doctor.subject import Subject
from transformer_serving.desk.doctor.triton_ports import check_chunks, check_open
from transformer_serving.desk.local.health import (
    NO_CONTROL_PLANE,
    OK,
    endpoint_rows,
    heartbeat,
)
from transformer_serving.desk.local.open_triton import HTTP_VARIABLE
from transformer_serving.desk.local.parts import controller_state

# The files themselves were hashed when the controller staged them.
_ENGINE_CHECKS = ("kit", "plan", "onnx", "vllm", "torch", "names")

# Of a bundle that is not served yet.
_FIXES = {
    "plan": "convert on a GPU of this kind",
    "vllm": "docs/gpu.md#text-generation has the ways to serve it",
    "torch": "docs/gpu.md#pytorch has what serves it",
}


def check_triton(subject: Subject) -> Findings:
    try:
        addresses = _addresses(subject)
    except ValueError as error:
        yield failure(str(error), f"set or correct {HTTP_VARIABLE}")
        return
    if not addresses:
        yield skipped(f"no stack, no {HTTP_VARIABLE} and no {STOCK_GRPC}")
    answered = False
    for address in addresses:
        answer = ask_at(address, "/v2")
        version = answer.json().get("version")
        if answer.status == 200 and version:
            answered = True
            where = f" at {address}" if len(addresses) > 1 else ""
            yield _compared(str(version), where, subject)
            yield from check_chunks(subject, address, str(version))
        else:
            yield _silent(address, answer, subject)
    if answered:
        yield from check_open(subject, addresses[0])


def _silent(address: str, answer: Answer, subject: Subject) -> Finding:
    is_named = bool(subject.environment.get(HTTP_VARIABLE))
    own = subject.record is not None and not is_named
    if answer.status == 0 and own:
        why = f"Triton does not run at {address}"
        if subject.absence is not None:
            return skipped(f"{why}; {subject.absence.fix}")
        return failure(why, f"see '{command_line('logs triton', subject.state)}'")
    if answer.unresolved and subject.from_file and "." not in address:
        if not is_named:
            return skipped(
                f"{address}, of {STOCK_GRPC}, is a name inside a container network, not known to "
                "this machine"
            )
        return warning(
            f"{HTTP_VARIABLE} {address} is a name inside a container network, not known to this "
            "machine",
            "nothing, if only containers use it; whether its models are ready: the line 'gateway'",
        )
    return failure(
        f"Triton does not answer at {address}: {answer.error or answer.status}",
        f"start Triton or correct {HTTP_VARIABLE if is_named else STOCK_GRPC}",
    )


def _addresses(subject: Subject) -> tuple[str, ...]:
    """Those that the workers share their calls among. Raises ValueError."""
    if not subject.environment.get(HTTP_VARIABLE):
        if subject.record is not None:
            return (subject.record.triton.http,)
        if not subject.environment.get(STOCK_GRPC):
            return ()
    return read_addresses(triton_http(subject.environment))


def _compared(version: str, where: str, subject: Subject) -> Finding:
    lock = subject.lock
    if subject.from_file and version == lock.vllm_image.triton:
        return ok(f"Triton{where} {version}, as pinned for vLLM")
    pin, release = (
        (lock.image.triton, lock.image.release)
        if subject.from_file
        else (lock.embedded.triton, lock.embedded.release)
    )
    if version == pin:
        return ok(f"Triton{where} {version}, as pinned")
    fix = (
        f"run {lock.image.image}, or move the pin: {command_line('versions use RELEASE')}"
        if subject.from_file
        else f"{pip_line(f'--no-deps nvidia-pytriton=={lock.embedded.nvidia_pytriton}')}, then 'up'"
    )
    return failure(f"Triton{where} is {version}, the pin {release} has {pin}", fix)


def check_endpoints(subject: Subject) -> Findings:
    # `down` leaves what the embedded stack's controller wrote, which is nothing of another stack.
    is_elsewhere = subject.from_file and not subject.is_state_named
    rows = [] if is_elsewhere else endpoint_rows(subject.state)
    wanted = [row for row in rows if subject.endpoint in (None, row.get("endpoint"))]
    if not rows and subject.from_file:
        yield skipped(
            "the controller of that stack writes elsewhere; 'gateway' asks what is served"
        )
    elif not rows and subject.endpoint is None:
        yield skipped("the controller has written no endpoints")
    elif not wanted and (why := why_not_of_controller(subject)):
        yield skipped(why)
    elif not wanted:
        names = ", ".join(sorted(str(row.get("endpoint")) for row in rows)) or "none"
        yield failure(
            f"there is no endpoint '{subject.endpoint}'; there are: {names}",
            f"deploy it: {command_line('deploy BUNDLE --endpoint NAME', subject.state)}",
        )
    silence = _silence(subject)
    if silence:
        yield failure(
            f"what the controller wrote of its endpoints is not of now: {silence}",
            f"see '{_controllers_log(subject)}'",
        )
    past = "" if subject.running and not silence else ", as the controller last wrote"
    for row in wanted:
        yield from _endpoint(row, subject, past)


def _silence(subject: Subject) -> str | None:
    """Why the state file of a controller that is to run is not its last round's. One that waits for
    its control plane goes round and writes all the same, as long as its heartbeat shows."""
    health = next((part.health for part in subject.parts if part.name == "controller"), OK)
    if health.startswith(NO_CONTROL_PLANE):
        health = heartbeat(controller_state(subject.state))
    return None if health == OK else health


def _controllers_log(subject: Subject) -> str:
    return command_line("logs controller", subject.state)


def _endpoint(row: Mapping[str, Any], subject: Subject, past: str) -> Findings:
    name, reason = row.get("endpoint"), str(row.get("reason") or "")
    faults = list(_engine(row, subject))
    for fault in faults:
        yield failure(f"endpoint {name}: {fault}", "deploy a bundle that was converted for it")
    if not row.get("ready"):
        known = next(iter(explain(reason)), None)
        fix = known.fix if known else f"see '{_controllers_log(subject)}'"
        if not known and _is_problem(row):
            reason, _, fix = reason.rpartition("; ")
        yield failure(f"endpoint {name} is not ready: {reason or 'no reason given'}", fix)
    elif reason and row.get("failure", "") is None:
        yield warning(
            f"endpoint {name} serves what is asked for: {reason}",
            f"nothing of the endpoint; see 'disk' and '{_controllers_log(subject)}'",
        )
    elif reason:
        yield warning(
            f"endpoint {name} serves its last good bundle, and what starts now answers 503: "
            f"{reason}",
            "go back before anything is restarted: "
            f"{command_line(f'rollback {shlex.quote(str(name))}', subject.state)}; or deploy a "
            "bundle that loads",
        )
    elif not faults:
        mark = "" if row.get("verified") else ", unverified: added by hand"
        yield ok(f"endpoint {name} is ready{mark}{past}")


def _is_problem(row: Mapping[str, Any]) -> bool:
    """Whether it is of what the controller cannot take up at all, whose reason ends with the fix:
    no change of it was tried, none is under way, and it has nothing loaded.
    """
    return (
        "; " in str(row.get("reason") or "")
        and row.get("failure", "") is None
        and row.get("backend", "") is None
    )


def _engine(row: Mapping[str, Any], subject: Subject) -> Iterator[str]:
    """Why the engine of the files that the controller holds does not fit this server."""
    from transformer_serving.engine.bundle_config import config_faults

    model = str(row.get("model") or "")
    repository = subject.state / "triton" / "models" / model
    for folder in sorted(repository.glob("[0-9]*")) if model else []:
        manifest = folder / FILE_NAME
        if not manifest.is_file():
            continue
        try:
            read = read_manifest(manifest.read_bytes())
            said = refusals(
                read,
                folder,
                server_of(subject),
                config_faults,
                prefix="model/",
                checks=_ENGINE_CHECKS,
            )
        except (ContractError, OSError) as error:
            yield str(error)
            continue
        if read.engine == "tensorrt" and not subject.from_file:
            yield "its engine is tensorrt, and the embedded Triton has no TensorRT"
        yield from (refusal.message for refusal in said)


def server_of(subject: Subject) -> ServerFacts:
    """The image pin on this machine's GPU; the embedded Triton has its own ONNX Runtime, and where
    there is none a bundle for vLLM is served by that image."""
    lock = subject.lock
    pinned = lock.facts()
    embedded = not subject.from_file and installed("onnxruntime")
    return replace(
        pinned,
        gpus=visible_gpus(subject.environment),
        onnxruntime=embedded or pinned.onnxruntime,
        triton=lock.vllm_image.triton if subject.record is None else lock.embedded.triton,
        torch=None if subject.from_file else installed("torch") or MISSING,
    )


def check_bundle(subject: Subject) -> Findings:
    """The whole gate of deploy, and this machine's GPU."""
    if subject.bundle is None:
        yield skipped("no --bundle")
        return
    files = engine_files(subject.bundle)
    if files:
        for path in files:
            yield from check_engine_file(path, server_of(subject))
    else:
        yield from _bundle(subject, subject.bundle)


def _bundle(subject: Subject, path: Path) -> Findings:
    from transformer_serving.desk.bundle.folder import open_bundle
    from transformer_serving.desk.failure import Failure
    from transformer_serving.engine.bundle_config import config_faults

    try:
        bundle = open_bundle(path)
    except Failure as error:
        yield failure(str(error), f"convert again: {command_line('convert MODEL --output BUNDLE')}")
        return
    here = refusals(bundle.manifest, path, server_of(subject), config_faults, checks=tuple(_FIXES))
    for refusal in here:
        yield failure(f"{path}: {refusal.message}", _FIXES[refusal.code])
    if not here:
        manifest = bundle.manifest
        yield ok(f"{path} is bundle {manifest.bundle_version} ({manifest.engine})")
