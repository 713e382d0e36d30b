"""What lies where an engine was expected: known by its first bytes, or by nothing.

Tested by tests/doctor/test_engine_file.py.
"""

from __future__ import annotations

from pathlib import Path

# In this order: the longer ones first where one begins as another does.
_KNOWN = (
    (
        b"version https://git-lfs",
        "a Git LFS pointer, not the file itself (git lfs pull fetches it)",
    ),
    (b"PK\x03\x04", "a zip archive, as torch.save writes"),
    (b"\x80\x02", "a pickle, as older torch.save wrote"),
    (b"\x80\x03", "a pickle"),
    (b"\x80\x04", "a pickle"),
    (b"\x80\x05", "a pickle"),
    (b"\x89HDF\r\n", "an HDF5 file, as Keras writes"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x7fELF", "a program or library"),
    (b"GGUF", "a GGUF model"),
    (b"<!DOCTYPE html", "a web page: what a server answered instead of the file"),
    (b"<!doctype html", "a web page: what a server answered instead of the file"),
    (b"<html", "a web page: what a server answered instead of the file"),
    (b"{", "JSON text"),
)
_TFLITE = slice(4, 8)
_SAFETENSORS = slice(8, 10)


def what_else(head: bytes, path: Path) -> str:
    """The file in a few words, from its first bytes (at least one)."""
    for start, what in _KNOWN:
        if head.startswith(start):
            return what
    if head[_TFLITE] == b"TFL3":
        return "a TensorFlow Lite model"
    if head[_SAFETENSORS] == b'{"':
        return "a safetensors file: weights without a graph"
    if not head.strip(b"\0"):
        return "nothing but zeros, as an interrupted download leaves"
    if path.suffix == ".bin" and path.with_suffix(".xml").is_file():
        return f"the weights of {path.with_suffix('.xml').name}, which is the model's file"
    return "of no kind that is known here"
