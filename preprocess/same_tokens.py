"""Ways to a tokenizer's own tokens that cost less, of the texts for which they are surely the same.

Tested by tests/preprocess/test_same_tokens.py.
"""

from __future__ import annotations

from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from transformer_serving.contract.endpoint import Tokens

# A text of so many characters a token mostly has more tokens than the model takes.
_CHARACTERS_A_TOKEN = 8


def plain_library(library: Any, tokens: Tokens) -> Any | None:
    """The same tokenizer for texts that are plain, without the work that Unicode makes; None where
    there is none such.

    BERT's normalizer looks at each character for accents, control characters and Chinese ones,
    which no plain text has: what is left of it is the lower case. The model is shared.
    """
    normalizer = library.normalizer
    added = library.get_added_tokens_decoder()
    if type(normalizer) is not normalizers.BertNormalizer:
        return None
    if any(token.normalized and not is_plain(token.content) for token in added.values()):
        # Without its accents it may be what stands in a plain text.
        return None
    plain = tokenizers.Tokenizer(library.model)
    if normalizer.lowercase:
        plain.normalizer = normalizers.Lowercase()
    if library.pre_tokenizer is not None:
        plain.pre_tokenizer = library.pre_tokenizer
    if library.post_processor is not None:
        plain.post_processor = library.post_processor
    plain.add_tokens([added[number] for number in sorted(added)])
    if plain.get_added_tokens_decoder() != added:
        # Their numbers have gaps, which only the file can say.
        return None
    plain.encode_special_tokens = tokens.split_special_tokens
    return plain


def is_plain(text: str) -> bool:
    """Whether it is of ASCII's letters, digits, signs and blanks alone."""
    return text.isascii() and text.isprintable()


class Beginning:
    """What of a text is enough to have the tokens that the model takes of it."""

    def __init__(self, library: Any, tokens: Tokens) -> None:
        self._most = _CHARACTERS_A_TOKEN * tokens.max_length
        self._is_known = tokens.truncation_side == "right" and _ends_at_blanks(library)

    def of(self, text: str) -> str:
        """The text's beginning, up to a blank behind a word; all of it where that may have other
        tokens than the text begins with.
        """
        if not self._is_known or len(text) <= self._most:
            return text
        end = self._most
        while (end := text.rfind(" ", 0, end)) > 0:
            if not text[end - 1].isspace():
                return text[:end]
        return text


def _ends_at_blanks(library: Any) -> bool:
    """Whether what stands before a blank has the same tokens whatever comes behind it.

    True of BERT's words, and of GPT-2's, which have a blank at their beginning alone. No normalizer
    of these goes past one. An added token may be found beyond a blank that it has in it, or that
    BERT's normalizer makes of another white space there.
    """
    words, model, normalizer = library.pre_tokenizer, library.model, library.normalizer
    added = library.get_added_tokens_decoder().values()
    if any(any(map(str.isspace, token.content)) for token in added):
        return False
    if type(words) is pre_tokenizers.BertPreTokenizer:
        return type(model) is models.WordPiece and (
            normalizer is None or type(normalizer) is normalizers.BertNormalizer
        )
    return (
        type(words) is pre_tokenizers.ByteLevel
        and words.use_regex
        and normalizer is None
        and type(model) is models.BPE
        and not model.dropout
    )
