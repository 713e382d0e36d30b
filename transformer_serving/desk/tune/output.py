"""Where a tuned bundle and its gateway's variables are written.

Tested by tests/cli/test_tune.py and tests/stack/test_tune.py.
"""

from __future__ import annotations

import os
from pathlib import Path

from transformer_serving.contract.replacement import replace_file
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.bundle.signing import SigningKey
from transformer_serving.desk.bundle.writer import content_of, write_bundle
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.tune.knobs import GATEWAY_NAMES, Setting

# What a file is called for as long as it is not whole.
_LONGEST_NAME = 255 - len(f"..{'0' * 16}")


def environment_file(output: Path) -> Path:
    return output.with_name(f"{output.name}.env")


def check_environment_file(output: Path) -> None:
    """Raises Failure (exit code 2) where the variables cannot be written beside the bundle, or
    what stands there is not of an earlier run."""
    file = environment_file(output)
    if len(os.fsencode(file.name)) > _LONGEST_NAME:
        raise Failure(
            f"--output: a name has at most {_LONGEST_NAME - len('.env')} bytes, got "
            f"{len(os.fsencode(output.name))}; name another",
            exit_code=2,
        )
    try:
        lines = file.read_text("utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        raise Failure(
            f"{file} gets the gateway's variables, and what is there cannot be read: "
            f"{error.strerror}; name another --output",
            exit_code=2,
        ) from error
    if any(line.strip() and line.partition("=")[0] not in GATEWAY_NAMES for line in lines):
        raise Failure(
            f"{file} would be replaced, and it has other lines than {', '.join(GATEWAY_NAMES)}; "
            "name another --output",
            exit_code=2,
        )


def written(
    proven: Bundle, best: Setting, output: Path, key: SigningKey | None
) -> tuple[Bundle, Path]:
    """The bundle in its place, signed where there is a `key`, and a file of the gateway's variables
    beside it."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with content_of(proven, output.parent) as content:
        bundle = write_bundle(content, output, key)
    file = environment_file(output)
    replace_file(file, "".join(f"{name}={value}\n" for name, value in best.gateway.items()))
    return bundle, file
