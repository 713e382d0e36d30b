"""Whatever an error says, it is one line and no longer than asked."""

from __future__ import annotations

from hypothesis import given, strategies as st

from transformer_serving.contract.error_line import first_line, named_line, one_line, printable


@given(st.text(), st.integers(1, 300))
def test_it_is_one_line_of_at_most_so_many_characters(text: str, most: int) -> None:
    for line in (one_line(text, most), first_line(ValueError(text))):
        assert len(line.splitlines()) <= 1
    assert len(one_line(text, most)) <= most
    assert one_line(text).split() == text.split()


def test_an_error_is_told_by_its_first_line_and_its_type() -> None:
    assert first_line(ValueError("\n the cause\nadvice")) == "the cause"
    assert named_line(KeyError("x\ny")) == "KeyError: 'x\\ny'"
    assert named_line(RuntimeError("no kernel\n at 0x0")) == "RuntimeError: no kernel"
    assert named_line(MemoryError()) == "MemoryError: "
    assert len(first_line(ValueError("x" * 1000))) == 200


@given(st.text())
def test_nothing_is_left_that_a_terminal_obeys(text: str) -> None:
    assert printable(text).isprintable()


def test_what_is_shown_stays_what_it_is() -> None:
    assert printable("größe [/x] 日本") == "größe [/x] 日本"
    assert printable("a\x1b]0;x\x07b\nc") == "a\\x1b]0;x\\x07b\\nc"
