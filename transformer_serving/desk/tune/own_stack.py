"""The stack beside the served one: an endpoint for each bundle that is tried, and a gateway for
each environment.

Tested by tests/tune/test_own_stack.py and tests/stack/test_tune.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from transformer_serving.contract.settings.preprocess import SETTINGS as OF_PREPROCESS
from transformer_serving.contract.stack_line import MARK
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.bundle.writer import content_of, write_bundle
from transformer_serving.desk.deploy.endpoint import deploy
from transformer_serving.desk.deploy.golden import wait_for_golden
from transformer_serving.desk.deploy.removal import remove
from transformer_serving.desk.deploy.target import DeployTarget
from transformer_serving.desk.deploy.time_limit import Interrupted
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.interruption import undisturbed
from transformer_serving.desk.local.free_ports import free_row
from transformer_serving.desk.local.parts import gateway_launch
from transformer_serving.desk.local.record import LOOPBACK, require_record
from transformer_serving.desk.local.stack import Stack, stop
from transformer_serving.desk.local.supervision import Supervisor
from transformer_serving.desk.step_report import StepReport
from transformer_serving.desk.tune.knobs import Setting, Value, content_at
from transformer_serving.gateway.settings import (
    DRAIN_SECONDS,
    GRACEFUL_SECONDS,
    GRPC_PORT,
    SETTINGS as OF_GATEWAY,
)

_ANSWER_S = 180.0
_END_S = 15.0
# In which Triton has unloaded what was removed.
_FREED_S = 60.0
# Of an engine in Triton, beside its file: twice that while it is loaded.
_ENGINE_BYTES = 200 << 20
# What the caller's environment says of requests and speed. All else of ours is the served stack's
# own: keys, certificates, addresses, ports, folders.
_FOREIGN = {
    *(f"TRANSFORMER_SERVING_{name}" for name in ("TRITON_HTTP", "TRITON_GRPC")),
    *(f"TRANSFORMER_SERVING_METRICS_{name}" for name in ("PORT", "HOST")),
    GRPC_PORT.name,
    DRAIN_SECONDS.name,
    GRACEFUL_SECONDS.name,
}
_KEPT = {row.name for row in (*OF_PREPROCESS, *OF_GATEWAY)} - _FOREIGN
_OURS = ("TRANSFORMER_SERVING_", "CLEARML_", "OTEL_", "PROMETHEUS_")


def environment_of(setting: Setting, environment: Mapping[str, str]) -> dict[str, str]:
    """The caller's without what is the served stack's own, and with the setting."""
    kept = {
        name: value
        for name, value in environment.items()
        if name in _KEPT or not name.startswith(_OURS)
    }
    return {**kept, **setting.gateway}


@dataclass(frozen=True)
class _Gateway:
    """`process` None is the stack's own one."""

    port: int
    process: subprocess.Popen[bytes] | None = None


@dataclass
class OwnStack:
    """A running one; `sources` are the bundles by precision, in folders that may be linked to."""

    stack: Stack
    sources: Mapping[str, Bundle]
    report: StepReport
    _gateways: dict[tuple[str, ...], _Gateway]
    _bundles: dict[tuple[Value, ...], tuple[str, Bundle]] = field(default_factory=dict)
    _named: int = 0

    @property
    def target(self) -> DeployTarget:
        return self.stack.target()

    def bring(self, settings: Mapping[str, Setting]) -> None:
        """Have every one answer its golden request, by their names for people. Raises Failure, also
        where the disk is full."""
        for name, setting in settings.items():
            try:
                self._bring(name, setting)
            except OSError as error:
                reason = error.strerror or type(error).__name__
                raise Failure(f"{name} cannot be brought up: {reason}") from error

    def _bring(self, name: str, setting: Setting) -> None:
        if setting.bundle not in self._bundles:
            self.report(f"deploying {name}")
            self._bundles[setting.bundle] = self._deployed(setting)
        if _key(setting) not in self._gateways:
            self.report(f"starting a gateway for {name}")
            self._gateways[_key(setting)] = self._started(setting)
        self._wait_for(setting)

    def _wait_for(self, setting: Setting) -> None:
        _, bundle = self._bundles[setting.bundle]
        reason = wait_for_golden(
            self._url(setting),
            bundle.manifest.golden,
            bundle.manifest.bundle_version,
            _ANSWER_S,
            lambda: self._end_of(setting),
        )
        if reason is not None:
            raise Failure(f"{setting} does not answer: {reason}; see {self._logs}")

    def keep(self, settings: Iterable[Setting]) -> None:
        """Leave these; the other endpoints and gateways go."""
        kept = list(settings)
        for bundle in self._bundles.keys() - {setting.bundle for setting in kept}:
            name, written = self._bundles.pop(bundle)
            remove(self.target, name, forget=True)
            shutil.rmtree(written.folder)
        for key in self._gateways.keys() - {_key(setting) for setting in kept}:
            # The stack's own goes with the stack: every deploy waits for it.
            if self._gateways[key].process is not None:
                _end(self._gateways.pop(key))

    def address(self, setting: Setting) -> Address:
        """Of one that was brought."""
        return Address.of(self._url(setting))

    def prove(self, setting: Setting, target: Path) -> Bundle:
        """Write the setting's bundle and serve it, its parity set asked of the engine before. What
        was brought goes: nothing more is measured.

        Raises Failure where an answer is not the reference's, and where memory does not suffice.
        """
        self.keep(())
        bundle = self._written(setting, target, proven=True)
        _wait_for_memory(bundle, setting.instances)
        self._deploy(bundle, "tuned", self.report)
        return bundle

    def _deploy(self, bundle: Bundle, name: str, report: StepReport) -> None:
        """Raises KeyboardInterrupt at a signal, as nothing is to go on with."""
        try:
            deploy(self.target, bundle, name, timeout_s=_ANSWER_S, report=report)
        except Interrupted:
            raise KeyboardInterrupt from None

    def end_gateways(self) -> None:
        for gateway in self._gateways.values():
            _end(gateway)

    @property
    def _logs(self) -> Path:
        return self.stack.state / "logs"

    def _url(self, setting: Setting) -> str:
        name, _ = self._bundles[setting.bundle]
        return f"http://{LOOPBACK}:{self._gateways[_key(setting)].port}/serve/{name}"

    def _deployed(self, setting: Setting) -> tuple[str, Bundle]:
        self._named += 1
        name = f"setting_{self._named}"
        folder = self.stack.state / "bundles" / name
        try:
            bundle = self._written(setting, folder, proven=False)
            _check_memory(bundle, setting.instances)
            self._deploy(bundle, name, lambda _: None)
        except (Failure, OSError):
            # Else it is loaded while others are measured. It may never have been added.
            with suppress(Failure, OSError):
                remove(self.target, name, forget=True)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return name, bundle

    def _written(self, setting: Setting, target: Path, *, proven: bool) -> Bundle:
        """What is only tried has no parity set: asking it takes longer than a race."""
        with content_of(self.sources[setting.precision], self.stack.state) as content:
            tuned = content_at(content, setting)
            return write_bundle(tuned if proven else replace(tuned, parity_set=None), target)

    def _started(self, setting: Setting) -> _Gateway:
        name = f"gateway-{setting.calls}-{setting.workers}"
        port = free_row(1)
        state, record = self.stack.state, self.stack.record
        launch = gateway_launch(state, record, name, port, setting.workers)
        environment = {**launch.run_in(environment_of(setting, os.environ)), MARK: str(state)}
        with (self._logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                launch.command, env=environment, cwd=state / "run", stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        return _Gateway(port, process)

    def _end_of(self, setting: Setting) -> str | None:
        process = self._gateways[_key(setting)].process
        return None if process is None or process.poll() is None else "its gateway has ended"


@contextmanager
def own_stack(
    state: Path, sources: Mapping[str, Bundle], start: Setting, report: StepReport
) -> Iterator[OwnStack]:
    """Start it in the folder `state`; whatever happens, nothing of it runs afterwards. Raises
    Failure."""
    try:
        base = free_row(6)
        report("starting the stack")
        _up(state, base, environment_of(start, os.environ))
        record = require_record(state)
        own = OwnStack(
            Stack(state, record, Supervisor(state)), sources, report,
            {_key(start): _Gateway(record.ports.inference)},
        )  # fmt: skip
        try:
            yield own
        finally:
            with undisturbed():
                own.end_gateways()
    finally:
        with undisturbed():
            stop(state, report)


def _up(state: Path, base: int, environment: Mapping[str, str]) -> None:
    """By the command, so that the stack has another environment than this process."""
    command = (
        sys.executable, "-P", "-m", "transformer_serving.desk.cli", "up", "--json",
        "--state", str(state), "--port-base", str(base),
    )  # fmt: skip
    done = subprocess.run(
        command, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip() or "no word").splitlines()[-1]
        raise Failure(f"the stack to tune on did not start: {last.removeprefix('error: ')}")


def _key(setting: Setting) -> tuple[str, ...]:
    return tuple(setting.gateway.values())


def _end(gateway: _Gateway) -> None:
    """What it leaves is swept with the stack."""
    if gateway.process is None:
        return
    gateway.process.terminate()
    try:
        gateway.process.wait(_END_S)
    except subprocess.TimeoutExpired:
        gateway.process.kill()
        gateway.process.wait()


def _wait_for_memory(bundle: Bundle, instances: int) -> None:
    """Triton lets go of what was removed a while after. Raises Failure where that is not enough."""
    until = time.monotonic() + _FREED_S
    while True:
        try:
            _check_memory(bundle, instances)
            return
        except Failure:
            if time.monotonic() > until:
                raise
        time.sleep(0.5)


def _check_memory(bundle: Bundle, instances: int) -> None:
    """Raises Failure before the machine has no memory left for who is served."""
    engine = sum(path.stat().st_size for path in bundle.model_folder.iterdir())
    needed = instances * (2 * engine + _ENGINE_BYTES)
    available = psutil.virtual_memory().available
    if needed > available:
        raise Failure(
            f"one more engine to try may take {needed >> 20} MiB, and {available >> 20} MiB of "
            "memory are free; tune on a machine with more"
        )
