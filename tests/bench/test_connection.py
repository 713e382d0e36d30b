"""What a load over TLS costs at the side that asks."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.bench.served import served
from tests.bench.test_load import PAYLOAD, Played
from tests.bench.test_streams import BODY, Speaking
from tests.gateway.certificates import Authority, Pair
from transformer_serving.desk.bench import contact, load
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.bench.streams import measure_streams
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.http import distrust


class Trust:
    """An authority that this machine trusts, and how often its certificates were read."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = 0
        self.authority = Authority(folder)
        self.pair: Pair = self.authority.sign("server")
        monkeypatch.setenv("SSL_CERT_FILE", str(self.authority.cert))
        create = ssl.create_default_context

        def counted(*given: Any, **named: Any) -> ssl.SSLContext:
            self.read += 1
            return create(*given, **named)

        monkeypatch.setattr(ssl, "create_default_context", counted)


@pytest.fixture
def trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trust:
    return Trust(tmp_path, monkeypatch)


@pytest.mark.parametrize("kind", [load.Closed(4, 60, requests=12), load.Open(100, 0.2)])
def test_a_load_reads_the_authorities_once(kind: load.Closed | load.Open, trust: Trust) -> None:
    with served(Played(), tls=trust.pair) as port:
        # Each answer closes its connection.
        address = Address.of(f"https://127.0.0.1:{port}/close")
        found = load.run(address, [PAYLOAD], kind)
    assert {exchange.status for exchange in found.exchanges} == {200}
    assert trust.read == 1


def test_streams_read_the_authorities_once(trust: Trust) -> None:
    with served(Speaking(), tls=trust.pair) as port:
        address = Address.of(f"https://127.0.0.1:{port}/")
        [row] = measure_streams(address, BODY, (4,), 0.1)
    assert row.whole
    assert not row.others
    assert trust.read == 1


def test_a_certificate_that_is_not_trusted_names_the_way_out(tmp_path: Path) -> None:
    with served(Played(), tls=Authority(tmp_path).sign("server")) as port:
        address = Address.of(f"https://127.0.0.1:{port}/")
        said = f"certificate of 127.0.0.1:{port} is not trusted here: .* in SSL_CERT_FILE"
        with pytest.raises(Failure, match=said):
            contact.run(address, [PAYLOAD], load.Closed(1, 1))


def test_a_certificate_of_another_name_is_no_matter_of_its_authority(trust: Trust) -> None:
    with served(Played(), tls=trust.authority.sign("other", "127.0.0.2")) as port:
        address = Address.of(f"https://127.0.0.1:{port}/")
        with pytest.raises(Failure, match="not trusted here: .*[^.]; ask by a name that") as said:
            contact.run(address, [PAYLOAD], load.Closed(1, 1))
    assert "SSL_CERT_FILE" not in str(said.value)


@pytest.mark.parametrize(
    ("code", "fix"),
    [(9, "renew it, or set"), (10, "renew it, or set"), (62, "ask by a name"),
     (64, "ask by a name"), (18, "unknown: do this"), (20, "unknown: do this")],
)  # fmt: skip
def test_what_helps_is_of_what_openssl_found(code: int, fix: str) -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, "a reason."
    assert distrust(error, "unknown: do this").startswith(f"a reason; {fix}")
