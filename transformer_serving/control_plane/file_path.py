"""A path inside the file store, as callers and documents name one.

Tested by tests/control_plane/test_files.py.
"""

from __future__ import annotations

import unicodedata

from transformer_serving.control_plane.errors import ApiError, ApiFailure

_MAX_NAME_BYTES = 255
# An upload's header holds the path twice and may have 4 KiB.
_MAX_PATH_BYTES = 1900


def plain_path(path: str) -> str:
    """The path without what changes nothing of it: all that lead to one file are equal.

    ClearML's SDK writes a quote of a task's name as %22 itself, and clients write one so in an
    upload's header: which of the two an upload means it does not say, so both are one name.
    """
    return "/".join(part for part in path.replace("%22", '"').split("/") if part not in ("", "."))


def path_parts(path: str) -> list[str]:
    """The names along a path inside the store; refuses what could mean anything else."""
    parts = [part for part in plain_path(path).split("/") if part]
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


def places(path: str) -> list[list[str]]:
    """The names along each way to where a file of this path may lie; one is put at the first.

    At the second earlier kits put what an upload named in a header that was encoded as a whole.
    """
    first = path_parts(path)
    as_it_is = [part for part in path.split("/") if part not in ("", ".")]
    fits = all(len(part.encode()) <= _MAX_NAME_BYTES for part in as_it_is)
    return [first, as_it_is] if fits and as_it_is != first else [first]
