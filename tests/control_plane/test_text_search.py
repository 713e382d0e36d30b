"""The words of `search_text`."""

from __future__ import annotations

import pytest

from transformer_serving.control_plane.text_search import text_search

TEXTS = ("Fine-tuned base BERT", "über the first run", "org/bert_base.py")


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("bert", True),
        ("bert base", True),
        ("missing bert", True),
        ("missing", False),
        ("ber", False),
        ("tuned", True),
        ("fine-tuned", True),
        ("Uber", True),
        ("ÜBER", True),
        ("the", False),
        ("the run", True),
        ("bert_base", True),
        ("o.nx", False),
        ('"base bert"', True),
        ('"bert base"', False),
        ('"base bert" missing', True),
        ('"base bert" "the first"', True),
        ('"base bert" "the second"', False),
        ("bert -run", False),
        ("bert -missing", True),
        ('bert -"first run"', False),
        ("-missing", False),
        ('"', False),
        ("...", False),
    ],
)
def test_finds(wanted: str, found: bool) -> None:
    assert text_search(wanted)(TEXTS) is found


def test_nothing_is_found_in_nothing() -> None:
    assert not text_search("bert")([])
