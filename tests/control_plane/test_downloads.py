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


def test_a_range_of_another_file_is_the_whole_one(tmp_path: Path) -> None:
    """Each upload is a file of its own, though path and size are the same."""
    files, tags = FileStore(tmp_path), []
    for _ in range(2):
        incoming = files.receive()
        incoming.write(b"content")
        files.put(incoming, "a")
        answer = file_response(files.open("a"), "", head=True)
        tags.append(answer.headers["etag"])
    spans = [
        file_response(files.open("a"), "bytes=3-", head=True, if_range=tag).headers
        for tag in (*tags, "Tue, 24 Nov 2026 12:00:00 GMT")
    ]
    assert [row.get("content-range") for row in spans] == [None, "bytes 3-6/7", None]
