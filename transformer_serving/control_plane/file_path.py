"""A path inside the file store, as callers and documents name one.

Tested by tests/control_plane/test_files.py.
"""

from __future__ import annotations

import unicodedata

from transformer_serving.control_plane.errors import ApiError, ApiFailure

_MAX_NAME_BYTES = 255
# An upload's header holds the path twice and may have 4 KiB.
_MAX_PATH_BYTES = 1900


def path_parts(path: str) -> list[str]:
    """The names along a path inside the store; refuses what could mean anything else."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts:
        raise ApiError(ApiFailure.FIELD_VALUE, "path is empty")
    try:
        lengths = [len(part.encode()) for part in parts]
    except UnicodeEncodeError as error:
        raise ApiError(ApiFailure.FIELD_VALUE, "path is no valid text") from error
    if ".." in parts or any(unicodedata.category(letter) == "Cc" for letter in path):
        raise ApiError(ApiFailure.FIELD_VALUE, "path may not hold '..' or control characters")
    if max(lengths) > _MAX_NAME_BYTES:
        raise ApiError(
            ApiFailure.FIELD_VALUE,
            f"path: a name has at most {_MAX_NAME_BYTES} bytes, got {max(lengths)}",
        )
    if sum(lengths) + len(lengths) > _MAX_PATH_BYTES:
        raise ApiError(
            ApiFailure.FIELD_VALUE, f"path has at most {_MAX_PATH_BYTES} bytes, got {sum(lengths)}"
        )
    return parts
