"""The table of errors, and the page that is made from it."""

from __future__ import annotations

from pathlib import Path

from tests.loaded_file import loaded_file
from transformer_serving.contract.errors import KINDS, ServingError

ROOT = Path(__file__).parent.parent.parent


def test_a_body_always_has_the_same_keys() -> None:
    for code in KINDS:
        body = ServingError(code, "message", limit=1).body()
        assert list(body) == ["code", "message", "field", "limit", "got"]


def test_only_what_may_pass_by_itself_says_when_to_come_back() -> None:
    for kind in KINDS.values():
        assert (kind.retry_after_s is not None) == (kind.status == 503)


def test_the_page_is_as_the_tables_are() -> None:
    made = loaded_file(ROOT / "scripts/errors_page.py", "errors_page")
    assert made.PAGE.read_text("utf-8") == made.page(), "run `make docs`"
