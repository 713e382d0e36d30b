"""Who gets in, and over what: keys and TLS, and the address that needs them.

Each setting is declared once, as a row of ACCESS: the environment variable, the flag of
`python -m transformer_serving.gateway` and the sentence for `--help` and the docs come from it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from transformer_serving.contract.keys import VARIABLE
from transformer_serving.contract.loopback import is_loopback


@dataclass(frozen=True)
class AccessSetting:
    """One environment variable and its flag; a switch is on with "1"."""

    name: str
    flag: str
    help: str
    is_switch: bool = False


KEYS_FILE = AccessSetting(
    VARIABLE,
    "--keys",
    "File of keys, made by `transformer-serving keys add`; every request but those for "
    "/health, /health/live and /health/ready, the last two also under /v2, and for the files of "
    "the pages at / and /docs then needs one. It is read again when it changes.",
)
OPEN = AccessSetting(
    "TRANSFORMER_SERVING_OPEN",
    "--open",
    "Listen without keys on an address that others reach; 1 in the variable.",
    is_switch=True,
)
TLS_CERT = AccessSetting(
    "TRANSFORMER_SERVING_TLS_CERT",
    "--tls-cert",
    "PEM file of the certificate and its chain; with it only TLS 1.2 and 1.3 are spoken. It is "
    "read again when it changes.",
)
TLS_KEY = AccessSetting(
    "TRANSFORMER_SERVING_TLS_KEY", "--tls-key", "PEM file of the certificate's private key."
)
TLS_CLIENT_CA = AccessSetting(
    "TRANSFORMER_SERVING_TLS_CLIENT_CA",
    "--tls-client-ca",
    "PEM file of the authorities that callers' certificates must come from; empty: none is asked.",
)
ACCESS = (KEYS_FILE, OPEN, TLS_CERT, TLS_KEY, TLS_CLIENT_CA)
# In a container every address is listened on; who reaches that is decided where its port is
# published. The compose files say that here, and have their TRANSFORMER_SERVING_BIND for it.
PUBLISHED = "TRANSFORMER_SERVING_PUBLISHED"


@dataclass(frozen=True)
class Access:
    keys_file: Path | None = None
    open: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    published: str | None = None


def read_access(environment: Mapping[str, str] = os.environ) -> Access:
    """As the environment has it. Raises ValueError for settings that do not go together."""
    access = Access(
        keys_file=_path(environment, KEYS_FILE),
        open=_is_open(environment),
        tls_cert=_path(environment, TLS_CERT),
        tls_key=_path(environment, TLS_KEY),
        tls_client_ca=_path(environment, TLS_CLIENT_CA),
        published=environment.get(PUBLISHED) or None,
    )
    if (access.tls_cert is None) != (access.tls_key is None):
        raise ValueError(f"{TLS_CERT.flag} and {TLS_KEY.flag} belong together: name both or none")
    if access.tls_client_ca is not None and access.tls_cert is None:
        raise ValueError(f"{TLS_CLIENT_CA.flag} needs {TLS_CERT.flag} and {TLS_KEY.flag}")
    return access


def check_address(access: Access, host: str) -> None:
    """Raises ValueError for an address that others reach, without keys and not said to be open."""
    reached = access.published or host
    if access.keys_file is not None or access.open or is_loopback(reached):
        return
    if access.published is None:
        raise ValueError(
            f"{reached} is reached from elsewhere and there are no keys: name their file with "
            f"{KEYS_FILE.flag}, listen on 127.0.0.1, or say {OPEN.flag}"
        )
    raise ValueError(
        f"TRANSFORMER_SERVING_BIND publishes on {reached}, which is reached from elsewhere, and "
        "there are no keys: name the folder of keys.json with TRANSFORMER_SERVING_KEYS_FOLDER, "
        f"bind 127.0.0.1, or set {OPEN.name}=1"
    )


def _path(environment: Mapping[str, str], setting: AccessSetting) -> Path | None:
    named = environment.get(setting.name)
    return Path(named) if named else None


def _is_open(environment: Mapping[str, str]) -> bool:
    value = environment.get(OPEN.name, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{OPEN.name} must be 1, 0 or empty")
    return value == "1"
