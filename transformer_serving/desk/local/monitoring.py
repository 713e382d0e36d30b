"""Prometheus and, where it is installed, Alertmanager beside the stack: `up --monitoring`.

Their files lie below the state folder: what Prometheus asks and the rules are made at each start of
it, for the settings of this stack; who is told of alerts is made once and the operator's from then.

Tested by tests/local/test_monitoring.py and tests/stack/test_alerts_fire.py.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_serving.contract.keys import VARIABLE as KEYS_VARIABLE
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.http import METRICS_KEY_VARIABLE, key_header
from transformer_serving.desk.local.record import (
    LOOPBACK,
    MONITORING,
    POLL_SECONDS,
    StackRecord,
    write_private,
)

if TYPE_CHECKING:
    from transformer_serving.desk.monitoring.scrapes import Place
    from transformer_serving.desk.monitoring.times import TimeScale

PROMETHEUS, _ALERTMANAGER = MONITORING
# What Debian calls the program, then what its makers do.
PROGRAMS = {
    PROMETHEUS: ("prometheus",),
    _ALERTMANAGER: ("prometheus-alertmanager", "alertmanager"),
}
# An error budget is one of 30 days; whichever comes first.
KEPT_FOR, KEPT_BYTES = "31d", "1GB"


def chosen(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The parts to run. Raises Failure where there is no Prometheus, or it could read nothing."""
    from transformer_serving.desk.monitoring.rules import limits

    if program(PROMETHEUS) is None:
        raise Failure(
            "no Prometheus is installed here; on Debian and Ubuntu: apt-get install prometheus "
            "(and prometheus-alertmanager, which tells of alerts)",
            exit_code=2,
        )
    check_key(environment, environment)
    limits(_settings(environment))
    return tuple(name for name in MONITORING if program(name) is not None)


def check_key(started_with: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Raise Failure where the gateway that was started so looks at keys, and Prometheus has none
    to show: the shell that has it join a stack need not be that of its start."""
    if started_with.get(KEYS_VARIABLE) and not environment.get(METRICS_KEY_VARIABLE):
        raise Failure(
            "the gateway takes a key for its figures, made by "
            f"'{command_line('keys add NAME --metrics')}': give it in {METRICS_KEY_VARIABLE}",
            exit_code=2,
        )


def program(part: str) -> str | None:
    """The path of its program, None where it is not installed."""
    return next(filter(None, map(shutil.which, PROGRAMS[part])), None)


def folder(state: Path) -> Path:
    return state / "monitoring"


def alerts_page(record: StackRecord) -> str:
    return f"http://{LOOPBACK}:{record.ports.prometheus}/alerts"


def write_key(state: Path, environment: Mapping[str, str], *, joined: bool = False) -> None:
    """What Prometheus shows the gateway and the controller, which without keys do not look.

    One that has `joined` the stack keeps what it has where the environment has no key.
    """
    key = environment.get(METRICS_KEY_VARIABLE, "")
    key_header(key)
    if joined and not key:
        return
    write_private(_key_file(state), key)


def write_files(
    state: Path, record: StackRecord, environment: Mapping[str, str], scale: TimeScale | None = None
) -> Path:
    """rules.yaml and prometheus.yaml; the latter's path. A Prometheus that runs reads them again
    at SIGHUP.
    """
    from transformer_serving.desk.monitoring.rules import limits, rules
    from transformer_serving.desk.monitoring.scrapes import prometheus_config
    from transformer_serving.desk.monitoring.times import TimeScale

    times = scale or TimeScale()
    write_private(folder(state) / "rules.yaml", rules(times, limits(_settings(environment))))
    config = folder(state) / "prometheus.yaml"
    write_private(config, prometheus_config(times, place(state, record)))
    return config


def _settings(environment: Mapping[str, str]) -> dict[str, str]:
    """What alerts measure against: how often this stack's parts look is no setting."""
    from transformer_serving.desk.monitoring.rules import POLLS

    return {**environment, **dict.fromkeys(POLLS, f"{POLL_SECONDS / 60:.5f}")}


def place(state: Path, record: StackRecord) -> Place:
    """Where this stack's pages are."""
    from transformer_serving.desk.monitoring.alerts import ENGINE_JOB, INFERENCE_JOB
    from transformer_serving.desk.monitoring.scrapes import Place

    ports = record.ports
    has_alertmanager = _ALERTMANAGER in record.monitoring
    return Place(
        key_file=str(_key_file(state)),
        targets={
            INFERENCE_JOB: [f"{LOOPBACK}:{ports.inference}"],
            ENGINE_JOB: [f"{LOOPBACK}:{ports.controller_metrics}"],
        },
        alertmanagers=[f"{LOOPBACK}:{ports.alertmanager}"] if has_alertmanager else [],
    )


def prometheus_command(state: Path, record: StackRecord) -> list[str]:
    """Its command line, after its files are written."""
    if not _key_file(state).exists():
        write_private(_key_file(state), "")
    address = f"{LOOPBACK}:{record.ports.prometheus}"
    return [
        _installed(PROMETHEUS),
        f"--config.file={write_files(state, record, os.environ)}",
        f"--storage.tsdb.path={_data(state, PROMETHEUS)}",
        f"--storage.tsdb.retention.time={KEPT_FOR}",
        f"--storage.tsdb.retention.size={KEPT_BYTES}",
        # The last traced request of each bucket.
        "--enable-feature=exemplar-storage",
        f"--web.listen-address={address}",
        # Unless told so, it lets the page of any site read what it has.
        f"--web.cors.origin=http://{re.escape(address)}",
    ]


def alertmanager_command(state: Path, record: StackRecord) -> list[str]:
    """Likewise."""
    from transformer_serving.desk.monitoring.receivers import alertmanager_config

    config = folder(state) / "alertmanager.yaml"
    if not config.exists():
        write_private(config, alertmanager_config("It is yours: it is made once."))
    return [
        _installed(_ALERTMANAGER),
        f"--config.file={config}",
        f"--storage.path={_data(state, _ALERTMANAGER)}",
        f"--web.listen-address={LOOPBACK}:{record.ports.alertmanager}",
        # It is alone.
        "--cluster.listen-address=",
    ]


def _installed(part: str) -> str:
    found = program(part)
    if found is None:
        raise Failure(f"{part} is not installed any more; start the stack without --monitoring")
    return found


def _key_file(state: Path) -> Path:
    return folder(state) / "metrics_key"


def _data(state: Path, part: str) -> Path:
    path = folder(state) / part
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path
