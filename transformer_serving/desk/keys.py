"""The gateway's key file, changed at the desk: one writer at a time, and never half a file.

Tested by tests/cli/test_keys.py.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.keys import (
    ENDPOINT_RULE,
    Key,
    digest_of,
    is_endpoint,
    keys_text,
    new_key,
    now,
    parse_keys,
    read_key_file,
)
from transformer_serving.contract.naming import KEY_NAME, KEY_NAME_RULE
from transformer_serving.contract.replacement import replace_file
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import Failure

# The gateway may run as another user, in its container; no key can be had from it.
_MODE = 0o644


def add_key(path: Path, name: str, endpoints: Sequence[str], *, metrics: bool) -> str:
    """The new key, which is kept nowhere. Raises Failure (exit code 2) for what cannot be added."""
    _check(name, endpoints, metrics=metrics)
    with _changing(path) as (file, keys):
        if any(key.name == name for key in keys):
            raise Failure(
                f"{path} has a key '{name}' already; choose another name, or first: "
                f"{command_line(f'keys remove {name} --file {path}')}",
                exit_code=2,
            )
        secret = new_key()
        bound = tuple(dict.fromkeys(endpoints)) or None
        _write(file, [*keys, Key(name, digest_of(secret), now(), bound, metrics)])
    return secret


def take_back(path: Path, name: str, why: OSError) -> Failure:
    """Remove a key that could not be printed, which nobody has then; what is said of it."""
    said = f"the key could not be printed ({why.strerror})"
    try:
        remove_key(path, name)
    except Failure as left:
        return Failure(
            f"{said}, and '{name}' is still in {path}: {left}; once there is room: "
            f"{command_line(f'keys remove {name} --file {path}')}"
        )
    return Failure(f"{said}, and '{name}' is not in {path}; do it again where there is room")


def remove_key(path: Path, name: str) -> None:
    """Raises Failure (exit code 2) where there is no such key."""
    read(path)
    with _changing(path) as (file, keys):
        left = [key for key in keys if key.name != name]
        if len(left) == len(keys):
            raise Failure(
                f"{path} has no key '{name}'; see {command_line(f'keys list --file {path}')}",
                exit_code=2,
            )
        _write(file, left)


def read(path: Path) -> tuple[Key, ...]:
    """The keys of a file. Raises Failure (exit code 2)."""
    try:
        return parse_keys(read_key_file(path), str(path))
    except FileNotFoundError:
        raise Failure(
            f"there is no {path}; the first key makes it: "
            f"{command_line(f'keys add NAME --file {path}')}",
            exit_code=2,
        ) from None
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}", exit_code=2) from error
    except ContractError as error:
        raise Failure(f"{error}; correct it, or move it away and add keys anew", exit_code=2) from (
            None
        )


def _check(name: str, endpoints: Sequence[str], *, metrics: bool) -> None:
    if not KEY_NAME.fullmatch(name):
        raise Failure(f"a key's name takes {KEY_NAME_RULE}", exit_code=2)
    if not all(is_endpoint(endpoint) for endpoint in endpoints):
        raise Failure(f"--endpoint takes {ENDPOINT_RULE}", exit_code=2)
    if metrics and endpoints:
        raise Failure(
            "--metrics goes without --endpoint: such a key is for the figures of all endpoints",
            exit_code=2,
        )


@contextmanager
def _changing(path: Path) -> Iterator[tuple[Path, tuple[Key, ...]]]:
    """The file that `path` leads to and its keys, while nobody else changes them."""
    file = _resolved(path)
    try:
        # The folder is locked: the file itself is another one after each change.
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise Failure(
            f"{file.parent} is no folder for {path.name}: {error.strerror}; make it, or name "
            "another --file",
            exit_code=2,
        ) from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield file, read(file) if file.exists() else ()
    finally:
        os.close(folder)


def _resolved(path: Path) -> Path:
    """The file that links lead to, which need not be there. Raises Failure (exit code 2) for a link
    that leads to itself."""
    try:
        path.stat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}", exit_code=2) from error
    return path.resolve()


def _write(path: Path, keys: Sequence[Key]) -> None:
    try:
        replace_file(path, keys_text(keys), mode=_MODE, durable=True)
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror}") from error
    except ContractError as error:
        # One key too many for what the gateway reads.
        raise Failure(f"{error}; remove keys that nobody uses", exit_code=2) from None
