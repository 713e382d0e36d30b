"""Texts for Hypothesis: every length, all of Unicode's troubles, special tokens as words."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.preprocess.answers.families import SENTENCES, Family

_WORDS = st.sampled_from([word for sentence in SENTENCES for word in sentence.split()])
_TROUBLE = st.sampled_from(
    [
        "🙂",
        "👩‍👩‍👧‍👦",
        "e\u0301a\u0308",
        "東京タワー",
        "ﬁne",
        "İstanbul",
        "עברית",
        "\u200b",
        "\ufeffx",
        "  ",
        "\n\t",
        "a.b,c!",
        "don't",
        "U.S.",
        "x" * 30,
        "\x00",
        "①②",
    ]
)


def texts(family: Family) -> st.SearchStrategy[str]:
    """From nothing to more than the model takes."""
    pieces = st.one_of(_WORDS, _WORDS, _TROUBLE, st.sampled_from(family.specials), st.text())
    return st.one_of(
        st.just(""),
        st.text(max_size=12),
        st.lists(pieces, max_size=40).map(" ".join),
        st.lists(pieces, max_size=8).map("".join),
    )


def lists(family: Family) -> st.SearchStrategy[list[str]]:
    """One to four texts, some of them twice."""
    one = st.lists(texts(family), min_size=1, max_size=4)
    return one.flatmap(lambda found: st.just(found) | st.just([*found, found[0]]))
