"""What the stack's parts are started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.certificates import Authority
from transformer_serving.contract.signatures import TRUSTED_KEYS_VARIABLE
from transformer_serving.contract.worker.tracing import RATIO
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.parts import BY_NAME, check_settings
from transformer_serving.desk.local.record import Ports, new_record
from transformer_serving.gateway.access import KEYS_FILE, TLS_CERT, TLS_KEY
from transformer_serving.gateway.settings import MAX_BODY_BYTES, WORKERS

_PAIR = (TLS_CERT.name, TLS_KEY.name)


@pytest.mark.parametrize(("said", "workers"), [(None, "1"), ("", "1"), ("3", "3")])
def test_the_environment_says_how_many_workers(
    said: str | None, workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WORKERS.name, raising=False)
    if said is not None:
        monkeypatch.setenv(WORKERS.name, said)
    launch = BY_NAME["inference"].launch(tmp_path, new_record(tmp_path, Ports()))
    assert f"--workers={workers}" in launch.command


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (WORKERS.name, "many"),
        (WORKERS.name, "0"),
        (MAX_BODY_BYTES.name, "-1"),
        (RATIO.name, "2"),
        (TLS_CERT.name, "no-key-beside-it.crt"),
        ("TRANSFORMER_SERVING_TIMEOUT_S", "soon"),
        (TRUSTED_KEYS_VARIABLE, "no key"),
    ],
)
def test_a_wrong_setting_is_named_before_a_part_is_started(name: str, value: str) -> None:
    check_settings({})
    told = "--tls-cert and --tls-key" if name == TLS_CERT.name else name
    with pytest.raises(Failure, match=told) as refused:
        check_settings({name: value})
    assert refused.value.exit_code == 2


def test_files_that_hold_no_keys_or_certificates_are_named_too(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("no PEM and no JSON")
    for variables in ({KEYS_FILE.name: str(wrong)}, dict.fromkeys(_PAIR, str(wrong))):
        with pytest.raises(Failure, match=str(wrong)) as refused:
            check_settings(variables)
        assert refused.value.exit_code == 2
    pair = Authority(tmp_path).sign("own")
    check_settings(dict(zip(_PAIR, map(str, (pair.cert, pair.key)), strict=True)))
