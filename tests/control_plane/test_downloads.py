"""Ranges of a file that are no ranges."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.files.downloads import file_response
from transformer_serving.control_plane.files.store import FileStore


@pytest.mark.parametrize("wanted", ["bytes={}-", "bytes=-{}", "bytes=0-{}", "bytes={0}-{0}"])
def test_thousands_of_digits_are_no_range(tmp_path: Path, wanted: str) -> None:
    files = FileStore(tmp_path)
    incoming = files.receive()
    incoming.write(b"content")
    files.put(incoming, "a")
    stored = files.open("a")
    with pytest.raises(ApiError) as caught:
        file_response(stored, wanted.format("9" * 5000), head=False)
    assert caught.value.failure is ApiFailure.VALIDATION
    stored.close()
