from __future__ import annotations

from pathlib import Path

import pytest

from transformer_serving.contract.loopback import is_loopback
from transformer_serving.gateway.access import (
    ACCESS,
    KEYS_FILE,
    OPEN,
    PUBLISHED,
    TLS_CERT,
    TLS_CLIENT_CA,
    TLS_KEY,
    Access,
    check_address,
    read_access,
)


def test_an_empty_variable_is_an_unset_one() -> None:
    assert read_access({setting.name: "" for setting in ACCESS}) == read_access({}) == Access()
    assert all(setting.help.endswith(".") for setting in ACCESS)


@pytest.mark.parametrize("alone", [TLS_CERT, TLS_KEY, TLS_CLIENT_CA], ids=lambda row: row.flag)
def test_a_certificate_needs_its_key(alone: object) -> None:
    with pytest.raises(ValueError, match="--tls-cert"):
        read_access({alone.name: "file.pem"})  # type: ignore[attr-defined]


def test_paths_and_a_switch_are_read_together() -> None:
    paths = [Path("keys.json"), Path("tls.pem"), Path("key.pem"), Path("ca.pem")]
    named = zip((KEYS_FILE, TLS_CERT, TLS_KEY, TLS_CLIENT_CA), paths, strict=True)
    found = read_access({OPEN.name: "1", **{setting.name: str(path) for setting, path in named}})
    keys, cert, key, authorities = paths
    assert found == Access(keys, True, cert, key, authorities)


def test_a_switch_is_on_or_off() -> None:
    assert read_access({OPEN.name: "1"}).open
    assert not read_access({OPEN.name: "0"}).open
    with pytest.raises(ValueError, match=f"^{OPEN.name} must be 1, 0 or empty$"):
        read_access({OPEN.name: "yes"})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_keys(host: str) -> None:
    assert is_loopback(host)
    check_address(Access(), host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "192.0.2.7", "serving.example", ""])
def test_another_address_needs_keys_or_a_word(host: str) -> None:
    with pytest.raises(ValueError, match="--keys.*--open"):
        check_address(Access(), host)
    check_address(Access(open=True), host)
    check_address(Access(keys_file=Path("keys.json")), host)


def test_of_a_container_it_counts_where_its_port_is_published() -> None:
    check_address(read_access({PUBLISHED: "127.0.0.1"}), "0.0.0.0")
    outside = {PUBLISHED: "192.0.2.7"}
    with pytest.raises(ValueError, match=r"^TRANSFORMER_SERVING_BIND publishes on 192\.0\.2\.7,"):
        check_address(read_access(outside), "127.0.0.1")
    check_address(read_access({**outside, OPEN.name: "1"}), "0.0.0.0")
    check_address(read_access({**outside, KEYS_FILE.name: "keys.json"}), "0.0.0.0")
