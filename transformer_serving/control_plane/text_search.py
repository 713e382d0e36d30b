"""What `search_text` finds: whole words, as the real server's text index has them.

Its English endings are left out: there "models" finds "model" too, here it does not.

Tested by tests/control_plane/test_text_search.py.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection

_WORD = re.compile(r"\w+")
# A '-' before either asks for those that lack it; inside a word it only ends one.
_PART = re.compile(r'((?<!\S)-)?(?:"([^"]+)"|([^\s"]+))')
# Too common to tell anything; alone they find nothing.
_STOP_WORDS = frozenset(
    ("a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "in", "is", "it", "no", "not")
    + ("of", "on", "or", "such", "that", "the", "this", "to", "was", "will", "with")
)


def text_search(wanted: str) -> Callable[[Collection[str]], bool]:
    """A test of a document's texts: any of the words, each of the "phrases", no word with a '-'."""
    words: set[str] = set()
    phrases: list[str] = []
    without: set[str] = set()
    for minus, phrase, word in _PART.findall(_folded(wanted)):
        if minus:
            without |= _words(phrase or word)
            continue
        words |= _words(phrase or word)
        if phrase:
            phrases.append(phrase)

    def test(texts: Collection[str]) -> bool:
        folded = [_folded(text) for text in texts]
        present = set[str]().union(*map(_words, folded))
        return (
            not words.isdisjoint(present)
            and without.isdisjoint(present)
            and all(any(phrase in text for text in folded) for phrase in phrases)
        )

    return test


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text)) - _STOP_WORDS


def _folded(text: str) -> str:
    """Without capitals and accents."""
    if text.isascii():
        return text.casefold()
    letters = unicodedata.normalize("NFKD", text.casefold())
    return "".join(letter for letter in letters if not unicodedata.combining(letter))
