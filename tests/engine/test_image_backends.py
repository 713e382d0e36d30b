"""What the build of the Triton image calls; the image itself is in tests/compose/test_images.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from transformer_serving.engine import image_backends


@pytest.mark.parametrize("arguments", [["--help"], ["--folder"], [], ["a", "b"]], ids=str)
def test_what_is_no_folder_is_none_that_is_made(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["image_backends", *arguments])
    with pytest.raises(SystemExit):
        image_backends.main()
    assert not list(tmp_path.iterdir())


def test_a_folder_gets_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["image_backends", str(tmp_path)])
    image_backends.main()
    assert {path.name for path in tmp_path.iterdir()} == set(image_backends.BACKENDS)
