from __future__ import annotations

import json
import logging

import pytest

from transformer_serving.contract.worker.log_lines import NAME, JsonLines, trace_of
from transformer_serving.contract.worker.process_wide import process_wide
from transformer_serving.contract.worker.request_context import GoldenBody


def test_made_once_a_process() -> None:
    made = process_wide("of this test", list)
    made.append(1)
    assert process_wide("of this test", list) == [1]


def test_a_golden_body_is_told_by_its_attribute() -> None:
    assert GoldenBody({"text": "a"}).is_golden
    assert not hasattr(json.loads('{"is_golden": true}'), "is_golden")


def test_a_line_has_no_text_of_an_exception(caplog: pytest.LogCaptureFixture) -> None:
    words = "".join(("sec", "ret"))  # not as it stands in the line of code that a trace shows
    try:
        raise KeyError(words)
    except KeyError as error:
        logging.getLogger(f"{NAME}.test").error(
            "failed: %s", trace_of(error), exc_info=error, extra={"request_id": "mine"}
        )
    line = json.loads(JsonLines().format(caplog.records[0]))
    assert set(line) == {"time", "level", "logger", "message", "request_id"}
    assert "KeyError" in line["message"]
    assert "secret" not in json.dumps(line)
