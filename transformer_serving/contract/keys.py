"""The gateway's keys: what is kept of each in the key file, which holds none of them itself.

A key is 256 random bits, so nobody guesses it from its SHA-256, however fast that is made: the file
may be read by whoever runs the gateway.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.fields import Fields
from transformer_serving.contract.naming import KEY_NAME, KEY_NAME_RULE

# Names the file, to the gateway and to the controller.
VARIABLE = "TRANSFORMER_SERVING_KEYS_FILE"
# Tells people and scanners of secrets what it is.
PREFIX = "ts_"
_RANDOM_BYTES = 32
KEY_LENGTH = len(PREFIX) + 2 * _RANDOM_BYTES
MOST_BYTES = 1_000_000
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FIELDS = ("name", "sha256", "created", "endpoints", "metrics")
_MOST_OF_AN_ENDPOINT = 256
ENDPOINT_RULE = (
    "a name under /serve/ or name/version, without blanks and without '/' at its ends, at most "
    f"{_MOST_OF_AN_ENDPOINT} characters"
)


@dataclass(frozen=True)
class Key:
    """One key. `endpoints` None admits to all; `metrics`: to figures, and to nothing else."""

    name: str
    sha256: str
    created: str
    endpoints: tuple[str, ...] | None = None
    metrics: bool = False

    def admits(self, url: str) -> bool:
        """Whether to this endpoint, named as clearml-serving does: `name` or `name/version`.

        What a key has without a version stands for all of that name.
        """
        wanted = self.endpoints
        return wanted is None or url in wanted or url.partition("/")[0] in wanted


def new_key() -> str:
    return PREFIX + secrets.token_hex(_RANDOM_BYTES)


def digest_of(key: str) -> str:
    """What the file keeps of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def now() -> str:
    """The time as `created` has it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def keys_text(keys: Iterable[Key]) -> str:
    """The key file. Raises ContractError for keys that it could not be read with again."""
    rows = [{name: getattr(key, name) for name in _FIELDS} for key in keys]
    text = json.dumps({"keys": rows}, indent=2) + "\n"
    parse_keys(text.encode(), "the key file")
    return text


def read_key_file(path: Path) -> bytes:
    """What stands in it, to parse_keys's limit. Raises OSError."""
    # A pipe in its place would be waited for without end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "it is no file", str(path))
        return file.read(MOST_BYTES + 1)


def parse_keys(raw: bytes, where: str) -> tuple[Key, ...]:
    """The keys of a key file. Raises ContractError, whose text repeats nothing of the file."""
    if len(raw) > MOST_BYTES:
        raise ContractError(f"{where}: is too large; a key file has at most {MOST_BYTES} bytes")
    file = _object(raw, where)
    _only(file, ("keys",))
    keys = tuple(_key(row) for row in file.rows("keys"))
    for field in ("name", "sha256"):
        if any(count > 1 for count in Counter(getattr(key, field) for key in keys).values()):
            raise ContractError(f"{where}: two keys have the same '{field}'; remove one of them")
    return keys


def read_keys(path: Path) -> tuple[Key, ...]:
    """Of a gateway that starts. Raises ContractError, with the fix, where it cannot."""
    fix = f"make one with: transformer-serving keys add NAME --file {path}"
    try:
        return parse_keys(read_key_file(path), str(path))
    except OSError as error:
        raise ContractError(
            f"the key file {path} cannot be read: {error.strerror}; {fix}"
        ) from error
    except ContractError as error:
        raise ContractError(
            f"the key file {error}; correct it, or move it away and {fix}"
        ) from None


def _object(raw: bytes, where: str) -> Fields:
    try:
        values = json.loads(raw.decode(), object_pairs_hook=_without_twins)
    except (ValueError, RecursionError):
        # Not as its cause: a parser's error holds the text.
        raise ContractError(
            f"{where}: is not a JSON object in UTF-8, or one of its fields stands twice"
        ) from None
    if not isinstance(values, dict):
        raise ContractError(f"{where}: must hold a JSON object")
    return Fields(where, values)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError
    return values


def _only(fields: Fields, names: tuple[str, ...]) -> None:
    if set(fields.values) - set(names):
        raise ContractError(f"{fields.where}: has a field other than {', '.join(names)}")


def _key(row: Fields) -> Key:
    _only(row, _FIELDS)
    key = Key(
        name=_matching(row, "name", KEY_NAME, KEY_NAME_RULE),
        sha256=_matching(row, "sha256", _DIGEST, "64 hexadecimal digits in lower case"),
        created=_time(row),
        endpoints=_endpoints(row),
        metrics=row.take("metrics", bool),
    )
    if key.metrics and key.endpoints is not None:
        raise ContractError(
            f"{row.where}: a key for /metrics admits to no endpoint: 'endpoints' must be null"
        )
    return key


def _matching(row: Fields, name: str, pattern: re.Pattern[str], rule: str) -> str:
    value = row.take(name, str)
    if not pattern.fullmatch(value):
        raise ContractError(f"{row.where}: field '{name}' must be {rule}")
    return value


def _time(row: Fields) -> str:
    value = row.take("created", str)
    try:
        told = datetime.fromisoformat(value).isoformat(timespec="seconds")
    except ValueError:
        told = ""
    if told != value or not value.endswith("+00:00"):
        raise ContractError(
            f"{row.where}: field 'created' must be a time such as 2026-01-31T12:00:00+00:00"
        )
    return value


def _endpoints(row: Fields) -> tuple[str, ...] | None:
    if "endpoints" in row.values and row.values["endpoints"] is None:
        return None
    endpoints = row.texts("endpoints")
    if not endpoints or len(set(endpoints)) != len(endpoints):
        raise ContractError(
            f"{row.where}: field 'endpoints' must be null for all, or name each endpoint once"
        )
    if not all(is_endpoint(name) for name in endpoints):
        raise ContractError(f"{row.where}: field 'endpoints' must hold {ENDPOINT_RULE}")
    return endpoints


def is_endpoint(name: str) -> bool:
    """Whether a key can be bound to it: as clearml-serving writes an endpoint's URL."""
    return (
        0 < len(name) <= _MOST_OF_AN_ENDPOINT
        and name.isprintable()
        and " " not in name
        and name.strip("/") == name
    )
