"""Errors of the engine side: a short reason with the way out, shown in `status`.

Tested by tests/engine/test_endpoint_config.py.
"""


class EngineError(Exception):
    """Something on the engine side cannot work; the message says what and how to fix it."""


class StorageError(EngineError):
    """A file could not be had; the last good state serves on."""


class NotStored(StorageError):
    """The store answered that it has no such file."""


class ConfigError(EngineError):
    """A model configuration that cannot be built; the message names the field."""
