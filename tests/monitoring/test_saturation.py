"""Alerts of what is nearly full fire before, or when, the product itself lets nobody in."""

from __future__ import annotations

import pytest

from preprocess.admission import Admission, Share
from transformer_serving.contract.errors import ServingError
from transformer_serving.desk.monitoring.alerts import MANY_WAIT

LIMIT = 400_000


def filled(endpoints: int, tokens: int) -> float:
    """The part of the limit that waits when each of so many endpoints is refused."""
    admission = Admission(LIMIT, 2.0)
    for share in (busy := [Share() for _ in range(endpoints)]):
        admission.enter(share, tokens, 0.0)
    while busy:
        for share in list(busy):
            try:
                admission.enter(share, tokens, 0.0)
            except ServingError:
                busy.remove(share)
    return admission.tokens / LIMIT


@pytest.mark.parametrize("endpoints", [1, 2, 3, 4])
@pytest.mark.parametrize("tokens", [100, 6_000, 6_300, 20_000], ids="{} tokens each".format)
def test_overload_is_seen_in_the_tokens_that_wait(endpoints: int, tokens: int) -> None:
    """Of requests with few tokens and with many, a twentieth of the limit at most."""
    assert MANY_WAIT < filled(endpoints, tokens) < 0.82
