"""The tables of `status`: what others wrote is shown as they wrote it."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from transformer_serving.desk.cli.status import _status_tables

NAMES = ("x[/y]", "[bold]b", "a:smile:b")
REASONS = (
    "[json.exception.parse_error.101] parse error at line 1",
    "cannot load [/models/a/1/model.onnx]",
    "[enforce fail at alloc_cpu.cpp:117] no memory",
)


def test_signs_of_rich_are_shown() -> None:
    endpoints = [
        {"endpoint": name, "reason": reason, "backend": "onnx", "proof": "[a]", "ready": False}
        for name, reason in zip(NAMES, REASONS, strict=True)
    ]
    part = {
        "name": "triton", "pid": None, "port": 1, "address": None, "health": "[/no]",
        "version": "1",
    }  # fmt: skip
    values = {"parts": [part], "endpoints": endpoints, "rollouts": [], "open_tritons": []}
    page = io.StringIO()
    Console(file=page, width=300).print(_status_tables(Path("/w/[/x]/.stack"), values))
    text = page.getvalue()
    for shown in (*NAMES, *REASONS, "[/no]", "stack in /w/[/x]/.stack"):
        assert shown in text
