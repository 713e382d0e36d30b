"""One request's lines in logs that the real formatter wrote and supervisord's own files rotated."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from supervisor.loggers import RotatingFileHandler

from transformer_serving.contract.worker.log_lines import JsonLines
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.request_search import check_id, find

PRINTABLE = st.text([chr(code) for code in range(0x20, 0x7F)], min_size=1, max_size=128)


def json_line(request: str, message: str = "answered") -> bytes:
    record = logging.makeLogRecord(
        {"name": "transformer_serving.gateway", "msg": message, "levelno": 20, "levelname": "INFO"}
    )
    record.request_id = request
    return JsonLines().format(record).encode() + b"\n"


def rotated(logs: Path, part: str, lines: list[bytes], most: int) -> None:
    """Written as supervisord writes a part's output: at most three files."""

    class Output(RotatingFileHandler):  # type: ignore[misc]
        def emit(self, record: Any) -> None:
            self.stream.write(record)
            self.stream.flush()
            self.doRollover()

    logs.mkdir(exist_ok=True)
    output = Output(str(logs / f"{part}.log"), "ab", most, 2)
    for line in lines:
        output.emit(line)
    output.close()


def test_rotated_logs_are_read_oldest_first(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    lines = [json_line(f"request {at}") for at in range(100)] + [json_line("request 90")]
    rotated(logs, "inference", lines, 2_000)
    files = sorted(path.name for path in logs.iterdir())
    assert files == ["inference.log", "inference.log.1", "inference.log.2"]
    kept = [name for name in files for _ in (logs / name).read_bytes().splitlines()]
    seen: list[str] = []
    for at in range(100):
        found, searched = find(logs, ["inference"], f"request {at}")
        assert [path.name for path in searched] == files[::-1]
        assert all(line.entry and line.entry["request_id"] == f"request {at}" for line in found)
        for line in found:
            text = (logs / line.file).read_text().splitlines()[line.number - 1]
            assert text == line.text
        seen += [line.file for line in found]
    assert sorted(seen) == sorted(kept)
    again, _ = find(logs, ["inference"], "request 90")
    assert [line.file for line in again] == sorted((line.file for line in again), reverse=True)
    assert len(again) == 2


def test_parts_in_their_order_and_text_by_its_words(tmp_path: Path) -> None:
    (tmp_path / "triton.log").write_bytes(
        b"E1124 [request id: order-7] failed\nE1124 [request id: order-77] failed\n"
        b"pre-order-7 order-7_ xorder-7\n\xff\xfe order-7\xff\norder-7\n{order-7\n"
    )
    (tmp_path / "controller.log").write_bytes(b"INFO nothing of it\n")
    (tmp_path / "inference.log").write_bytes(
        json_line("order-7") + json_line("other", "a message that names order-7") + b'{"request_'
    )
    found, searched = find(tmp_path, ["inference", "watchdog", "controller", "triton"], "order-7")
    assert [(line.part, line.number) for line in found] == [
        ("inference", 1), ("triton", 1), ("triton", 4), ("triton", 5), ("triton", 6)
    ]  # fmt: skip
    assert [path.name for path in searched] == ["inference.log", "controller.log", "triton.log"]
    assert find(tmp_path, ["inference", "triton"], "order.7")[0] == []


@given(PRINTABLE, PRINTABLE)
def test_an_id_is_data(tmp_path_factory: pytest.TempPathFactory, one: str, other: str) -> None:
    logs = tmp_path_factory.mktemp("logs", numbered=True)
    (logs / "inference.log").write_bytes(json_line(one) + json_line(other))
    found, _ = find(logs, ["inference"], one)
    assert [line.number for line in found] == ([1, 2] if one == other else [1])
    check_id(one)


@pytest.mark.parametrize("request_id", ["", "x" * 129, "a\nb", "é", "\x7f"])
def test_what_no_request_has_as_its_id_is_refused(request_id: str) -> None:
    with pytest.raises(Failure, match="1 to 128 printable ASCII") as failure:
        check_id(request_id)
    assert failure.value.exit_code == 2


def test_what_a_terminal_would_obey_is_printed_as_text(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "triton.log").write_bytes(b"\x1b]0;title\x07 mine \x9b31m\n")
    code = (
        "import sys; from pathlib import Path; from transformer_serving.desk.cli import logs; "
        "logs._print_request(Path(sys.argv[1]), ['triton'], 'mine', as_json=False)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "logs")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith(r"triton.log:1: \x1b]0;title\x07 mine ")
    assert done.stdout.strip().isprintable()


def test_json_has_what_was_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformer_serving.desk.cli.logs import _print_request

    (tmp_path / "inference.log").write_bytes(json_line("mine"))
    _print_request(tmp_path, ["inference", "triton"], "mine", as_json=True)
    values = json.loads(capsys.readouterr().out)
    assert values["searched"] == [str(tmp_path / "inference.log")]
    assert values["lines"][0]["entry"]["request_id"] == "mine"
    with pytest.raises(Failure, match=r"looked in .* at inference\.log") as failure:
        _print_request(tmp_path, ["inference"], "nobody's", as_json=True)
    assert failure.value.exit_code == 1
    assert json.loads(capsys.readouterr().out)["lines"] == []
