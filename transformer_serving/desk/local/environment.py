"""What the machine and the caller's environment give a stack's parts: checked before any starts.

Tested by tests/local/test_parts.py and tests/local/test_supervision.py.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from transformer_serving.contract.keys import read_keys
from transformer_serving.contract.settings import preprocess as preprocess_settings
from transformer_serving.contract.signatures import TRUSTED_KEYS_VARIABLE, read_trusted_keys
from transformer_serving.contract.worker import tracing
from transformer_serving.desk.failure import Failure
from transformer_serving.gateway.access import (
    KEYS_FILE,
    OPEN,
    TLS_CERT,
    TLS_CLIENT_CA,
    TLS_KEY,
    read_access,
)
from transformer_serving.gateway.figures import folder as figures
from transformer_serving.gateway.settings import (
    DRAIN_SECONDS,
    GRACEFUL_SECONDS,
    SETTINGS,
    WORKERS,
    read_settings,
)

# Of a part that is told to end, until it is killed.
PART_STOP_S = 12
# What supervisord is to have, or not to start.
OPEN_FILES = 1024
# What the gateway takes to leave, once what ran in it has been cut.
_LEAVE_S = 5
# Of the gateway, where nobody says how long what runs in it may go on: what still does then has
# its answer before the part is killed.
USUAL_GRACE = {GRACEFUL_SECONDS.name: str(PART_STOP_S - _LEAVE_S)}

# What names a file or a folder; those of TLS are refused.
_PATHS = (KEYS_FILE.name, figures.VARIABLE)
# Where the stack's own Triton is, it says itself.
_OWN = (preprocess_settings.TRITON_HTTP, preprocess_settings.TRITON_GRPC)
_DEFAULTS = {
    row.name: row.default
    for row in (WORKERS, *SETTINGS, *preprocess_settings.SETTINGS, *tracing.SETTINGS)
    if row not in _OWN
}
_NAMES = (*_DEFAULTS, *_PATHS, OPEN.name, TRUSTED_KEYS_VARIABLE)


def check_settings(environment: Mapping[str, str]) -> None:
    """What the gateway and its workers would refuse one by one, each in its own log.

    Raises Failure (exit code 2) naming a wrong variable.
    """
    import preprocess.settings

    for setting in (TLS_CERT, TLS_KEY, TLS_CLIENT_CA):
        if environment.get(setting.name):
            raise Failure(
                f"{setting.name}: the embedded stack speaks no TLS, on this machine alone; unset "
                "it, and see docs/security.md for what does",
                exit_code=2,
            )
    try:
        WORKERS.number(environment)
        read_settings(environment)
        access = read_access(environment)
        if access.keys_file is not None:
            read_keys(access.keys_file)
        read_trusted_keys(environment)
        preprocess.settings.read_settings(environment)
        tracing.check_settings(environment)
    except ValueError as error:
        raise Failure(str(error), exit_code=2) from None


def unheard(environment: Mapping[str, str], started_with: Mapping[str, str]) -> list[str]:
    """The variables that say something else now than when the stack that runs was started.

    What is not set asks for nothing.
    """
    asked = environment_of_parts(environment)
    return [n for n in _NAMES if asked.get(n) and _said(asked, n) != _said(started_with, n)]


def _said(environment: Mapping[str, str], name: str) -> str:
    return (environment.get(name) or _DEFAULTS.get(name, "")).strip()


def stop_seconds(environment: Mapping[str, str]) -> int:
    """In which the front door ends when it is told to; longer than usual only where its user gives
    what runs in it longer, and says so."""
    longer = (DRAIN_SECONDS, GRACEFUL_SECONDS)
    if not any(environment.get(setting.name) for setting in longer):
        return PART_STOP_S
    told = environment_of_parts(environment, USUAL_GRACE)
    needed = sum(setting.number(told) for setting in longer)
    return max(PART_STOP_S, math.ceil(needed) + _LEAVE_S)


def check_triton() -> None:
    """That there is one, and what its models do not start without. Raises Failure (exit code 2)."""
    # Here, as the control plane's image has no engine.
    from transformer_serving.engine.backend_directory import pytriton_tritonserver
    from transformer_serving.engine.errors import EngineError
    from transformer_serving.engine.libpython import libpython_folder

    try:
        pytriton_tritonserver()
        libpython_folder()
    except EngineError as error:
        raise Failure(str(error), exit_code=2) from None


def check_open_files() -> None:
    """Raise Failure (exit code 2) where this user may not hold as many as supervisord asks for.

    The soft limit it raises itself, and the gateway its own; the hard one is raised here, for this
    process and what it starts, where that is allowed.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= OPEN_FILES:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    except (OSError, ValueError):
        raise Failure(
            f"at most {hard} open files are allowed here (ulimit -Hn), the stack needs "
            f"{OPEN_FILES}: raise it, as in /etc/security/limits.conf, by systemd's LimitNOFILE or "
            "a container's --ulimit nofile",
            exit_code=2,
        ) from None


def environment_of_parts(
    environment: Mapping[str, str], settings: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """The caller's, with paths from the caller's folder whole: the parts run in another one.

    `settings` are for a caller who has not set them; an empty variable is an unset one.
    """
    whole = {
        name: str(Path(environment[name]).absolute()) for name in _PATHS if environment.get(name)
    }
    unset = {name: value for name, value in settings.items() if not environment.get(name)}
    return {**environment, **unset, **whole}
