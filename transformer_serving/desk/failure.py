"""What the command line prints when it cannot go on: one line that says what and how to fix it.

Tested by tests/stack/test_desk_folder.py and tests/cli/test_failure.py.
"""

from __future__ import annotations

import os
import shutil

from transformer_serving.contract.full_disk import FULL, is_full_disk

# tempfile's own words: an error that names no file.
_NO_TEMPORARY_FOLDER = "No usable temporary directory found in "


class Failure(Exception):
    """A refusal or fault for the operator; the CLI prints it and leaves with `exit_code`.

    2: what was asked for cannot be done as asked. 1: it should have worked and did not.
    """

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ConversionRefused(Failure):
    """A model that will not become a bundle; the message says why and what to do instead."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=2)


class PrecisionRefused(ConversionRefused):
    """An engine that is not made or does not run in one precision; in another one it may."""


def no_space(place: object = None) -> str:
    """What a full disk is called: that of `place`, where it is known."""
    on = f"the disk of {place}" if place else "a disk"
    return f"no space is left on {on}; free some and try again"


def failure_of(error: OSError) -> Failure:
    """What this machine did not do, as far as the error says it; a command may know more."""
    why = error.strerror or str(error)
    place = error.filename2 or error.filename
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        # Of many files that were copied; the first one that was not says enough.
        _, place, why = error.args[0][0]
    if why.startswith(_NO_TEMPORARY_FOLDER):
        folders = why.removeprefix(_NO_TEMPORARY_FOLDER)
        return Failure(
            f"no temporary folder can be written, of {folders}; free some space on their disk, or "
            "name another folder with TMPDIR"
        )
    if is_full_disk(error) or any(os.strerror(code) in why for code in FULL):
        return Failure(no_space(place))
    return Failure(f"{place}: {why}" if place else why)
