"""What a message says of an address opens nothing."""

from __future__ import annotations

import pytest

from transformer_serving.contract.addresses import (
    shown_address,
    shown_addresses,
    shown_error,
)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("https://files.example/a@b/model.tar", "https://files.example/a@b/model.tar"),
        ("https://files.example?to=a@b", "https://files.example"),
        ("https://files.example#a@b", "https://files.example"),
        ("https://user:s3@cret@files.example:8081/a@b", "https://files.example:8081/a@b"),
        ("https://me@files.example/m.zip?X-Amz-Signature=d", "https://files.example/m.zip"),
        ("azure://account.blob/m.zip?sig=d#e", "azure://account.blob/m.zip"),
        ("azure://account.blob/a#2/m.zip?sig=d#e", "azure://account.blob/a#2/m.zip"),
        ("s3://me:secret@bucket/a#2/m.zip", "s3://bucket/a#2/m.zip"),
        ("//me:secret@files.example/a?d", "//files.example/a"),
        ("file:///models/m.zip", "file:///models/m.zip"),
        ("file:///models/a#2/what?.zip", "file:///models/a#2/what?.zip"),
        ("/models/m.zip", "/models/m.zip"),
        ("/models/a#2/what?.zip", "/models/a#2/what?.zip"),
        ("https://me:secret\u2100@files.example/a", "an address that cannot be read"),
        ("https://[secret/a", "an address that cannot be read"),
    ],
)
def test_an_address_is_shown_without_what_lets_in(address: str, said: str) -> None:
    assert shown_address(address) == said


def test_addresses_in_other_words_are_shown_likewise() -> None:
    said = shown_addresses("Failed creating s3://me:secret@bucket Reason: 'https://a/b?sig=c' d?e")
    assert said == "Failed creating s3://bucket Reason: 'https://a/b' d?e"
    # As urllib3 names it.
    said = shown_addresses("Max retries exceeded with url: /m.zip?a=b&sig=secret (Caused by it)")
    assert said == "Max retries exceeded with url: /m.zip (Caused by it)"


def test_an_error_is_its_type_and_what_it_says_without_what_lets_in() -> None:
    assert shown_error(ValueError()) == "ValueError"
    # Cut before it is shown, a password would be a host.
    long = f"No\n access to {'a' * 170} s3://me:{'secret' * 30}@bucket/m"
    said = shown_error(OSError(long))
    assert said == f"OSError: No access to {'a' * 170} s3://bucket/m"[: len("OSError: ") + 200]
