"""What the command line prints when it cannot go on: one line that says what and how to fix it.

Tested by tests/stack/test_desk_folder.py.
"""

from __future__ import annotations


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
