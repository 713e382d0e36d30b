"""One bad text fails the whole call that it is in: who it is is found out, and the others answered.

Tested by tests/preprocess/test_narrowing.py and tests/preprocess/test_coalesce.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from preprocess.queue.ticket import Text
from transformer_serving.contract.errors import ServingError

# One engine call of texts padded to a length: the error, or None when each has its row.
Attempt = Callable[[list[Text], int], Awaitable[Exception | None]]
Fail = Callable[[list[Text], Exception], None]


async def answer_all(texts: list[Text], length: int, attempt: Attempt, fail: Fail) -> None:
    """Answer every text; an engine error of a joined call is narrowed to the bad text."""
    error = await attempt(texts, length)
    if error is None:
        return
    if len(texts) == 1 or not _may_be_one_texts(error):
        fail(texts, error)
        return
    await _narrow(texts, length, attempt, fail)


async def _narrow(texts: list[Text], length: int, attempt: Attempt, fail: Fail) -> None:
    """Find one bad text with log2(n) calls, then answer the rest with one more.

    `suspects` is known to hold a bad text, while all of them are wanted: when one half is answered,
    the other holds it, and need not be tried as a whole. An error that is no text's says nothing of
    where it is.
    """
    suspects = texts
    rest: list[Text] = []
    while len(suspects := _wanted(suspects)) > 1:
        half = len(suspects) // 2
        first, second = suspects[:half], suspects[half:]
        error = await attempt(first, length)
        if error is None:
            suspects = second
        elif _may_be_one_texts(error):
            suspects, rest = first, rest + second
        else:
            fail(first, error)
            suspects, rest = [], second + rest
    await _halve(suspects, length, attempt, fail)
    await _halve(rest, length, attempt, fail)


async def _halve(texts: list[Text], length: int, attempt: Attempt, fail: Fail) -> None:
    """Answer every text, in halves where they fail: 2n calls where each of n texts is bad."""
    texts = _wanted(texts)
    error = await attempt(texts, length) if texts else None
    if error is None:
        return
    if len(texts) == 1 or not _may_be_one_texts(error):
        fail(texts, error)
        return
    half = len(texts) // 2
    await _halve(texts[:half], length, attempt, fail)
    await _halve(texts[half:], length, attempt, fail)


def _wanted(texts: list[Text]) -> list[Text]:
    return [text for text in texts if not text.done]


def _may_be_one_texts(error: Exception) -> bool:
    return isinstance(error, ServingError) and error.kind.code == "engine_failed"
