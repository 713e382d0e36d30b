"""A file of the stores that ClearML's SDK reads: S3, Google Storage, Azure, and folders.

With the keys of clearml.conf and of the environment, in a process of its own, as ClearML's commands
are: `python -m transformer_serving.desk.clearml_tools.storage FILE`. The address comes on stdin, as
every user of the machine may read a command line, and an address may be signed.

Tested by tests/clearml_tools/test_api.py and tests/deploy/test_rollback.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from transformer_serving.contract.addresses import shown_address, shown_addresses
from transformer_serving.contract.error_line import MOST, first_line, one_line
from transformer_serving.desk.clearml_tools.variables import without_clearml
from transformer_serving.desk.failure import Failure

_MODULE = "transformer_serving.desk.clearml_tools.storage"
# More than any model takes; a command's own time ends it before.
_FETCH_S = 6 * 3600
# The SDK tells its log why, and raises less.
_LOGGED = re.compile(r"clearml\.storage - ERROR - (.*)")


def fetch(address: str, target: Path, environment: Mapping[str, str]) -> None:
    """Copy the file into `target`. Raises Failure with the SDK's words."""
    named = shown_address(address)
    with TemporaryDirectory(prefix="transformer-serving-", dir=target.parent) as cache:
        own = {"CLEARML_CACHE_DIR": cache}
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", _MODULE, str(target)], input=address,
                env={**without_clearml(os.environ), **environment, **own},
                capture_output=True, text=True, timeout=_FETCH_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Failure(f"{named} could not be fetched within {_FETCH_S:.0f} s") from None
    if done.returncode:
        output = done.stdout + done.stderr
        said = _LOGGED.findall(output) or output.strip().splitlines()[-1:] or ["no output"]
        words = one_line(shown_addresses(said[0]), MOST)
        raise Failure(f"{named} could not be fetched: {words}")


def main() -> None:
    from clearml import StorageManager

    (target,), address = sys.argv[1:], sys.stdin.read()
    try:
        local = StorageManager.get_local_copy(address, extract_archive=False, force_download=True)
    except Exception as error:
        sys.exit(first_line(error))
    if local is None:
        sys.exit("it is not there, or its store is none that ClearML knows")
    shutil.copyfile(local, target)


if __name__ == "__main__":
    main()
