"""Errors of the engine side: a short reason with the way out, shown in `status`.

Tested by tests/engine/test_endpoint_config.py.
"""


class EngineError(Exception):
    """Something on the engine side cannot work; the message says what and how to fix it."""


class StorageError(EngineError):
    """A file could not be had; the last good state serves on."""


class NoRoom(StorageError):
    """The volume that a file was to come to is full; `needed` are the file's bytes, 0: unknown."""

    def __init__(self, message: str, needed: int) -> None:
        super().__init__(message)
        self.needed = needed


class TooLargeSoFar(StorageError):
    """There is no room for what comes of a file whose size nobody says: only fetching it tells."""


class NotStored(StorageError):
    """The store answered that it has no such file."""


class NotWanted(EngineError):
    """Nobody asks for it any more: no fault, and nothing to try again."""


class ConfigError(EngineError):
    """A model configuration that cannot be built; the message names the field."""
