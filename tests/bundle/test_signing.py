"""With trusted keys, nobody's code is served but theirs; the refusals name the fix."""

from __future__ import annotations

import contextlib
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings, strategies as st

from tests.doctor.conftest import CLI
from tests.engine.serving import FIELDS
from tests.stack.small_bundles import Parts, hash_anew, write_small
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.manifest import read_manifest
from transformer_serving.contract.signatures import (
    TRUSTED_KEYS_VARIABLE,
    TrustedKeys,
    check_signed_manifest,
    check_signed_preprocess,
    parse_public,
    read_trusted_keys,
)
from transformer_serving.desk.bundle.folder import open_bundle
from transformer_serving.desk.bundle.signing import SigningKey, new_key, read_key, sign_bundle
from transformer_serving.desk.bundle.writer import content_of, write_bundle
from transformer_serving.desk.failure import Failure
from transformer_serving.engine.controller.control_plane.served import Served
from transformer_serving.engine.controller.control_plane.verification import Refused, verify
from transformer_serving.gateway.host.preprocess_gate import guard

KEY = Ed25519PrivateKey.generate()
SERVED = Served("e", "e", "m", "py_code", "ONNX", FIELDS, "", "")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    return new_key("me", tmp_path_factory.mktemp("key"))[1]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_small(tmp_path / "bundle").folder


@pytest.fixture
def trusted(key: SigningKey, monkeypatch: pytest.MonkeyPatch) -> TrustedKeys:
    monkeypatch.setenv(TRUSTED_KEYS_VARIABLE, key.public)
    return TrustedKeys(dict([parse_public(key.public)]))


def test_a_signed_bundle_is_opened_and_keeps_its_number(
    bundle: Path, key: SigningKey, trusted: TrustedKeys
) -> None:
    with pytest.raises(Failure, match="is not signed.*transformer-serving sign BUNDLE KEY"):
        open_bundle(bundle)
    before = read_manifest((bundle / "model" / "manifest.json").read_bytes())
    sign_bundle(bundle, key)
    assert open_bundle(bundle).manifest.bundle_version == before.bundle_version
    once = (bundle / "preprocess.py").read_bytes()
    sign_bundle(bundle, key)
    assert (bundle / "preprocess.py").read_bytes() == once


def appended(folder: Path) -> None:
    path = folder / "preprocess.py"
    path.write_bytes(path.read_bytes() + b"import os\n")
    hash_anew(folder)


def golden(folder: Path) -> None:
    path = folder / "model" / "manifest.json"
    path.write_text(path.read_text().replace('"tolerance": 0.001', '"tolerance": 9.0'))


def unsigned_manifest(folder: Path) -> None:
    (folder / "model" / "manifest.sig").unlink()


def another_key(folder: Path) -> None:
    sign_bundle(folder, new_key("stranger", folder.parent)[1])


def another_key_of_the_name(folder: Path) -> None:
    (folder.parent / "other").mkdir()
    sign_bundle(folder, new_key("me", folder.parent / "other")[1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (appended, "is not the one of bundle"),
        (golden, "manifest.json is not what 'me' signed"),
        (unsigned_manifest, "manifest.json is not signed"),
        (another_key, "is signed by 'stranger', whose key is not in"),
        (another_key_of_the_name, "signed with another key of that name"),
    ],
)
def test_what_was_changed_or_signed_by_others_is_refused_by_desk_and_controller(
    bundle: Path, key: SigningKey, trusted: TrustedKeys, change: Callable[[Path], None], said: str
) -> None:
    sign_bundle(bundle, key)
    change(bundle)
    with pytest.raises(Failure, match=said):
        open_bundle(bundle)
    with pytest.raises(ContractError):
        verify(SERVED, bundle / "model", (bundle / "preprocess.py").read_bytes())


def test_the_controller_takes_what_is_signed_and_refuses_what_has_no_manifest(
    bundle: Path, key: SigningKey, trusted: TrustedKeys, tmp_path: Path
) -> None:
    raw = (bundle / "preprocess.py").read_bytes()
    with pytest.raises(ContractError, match="is not signed"):
        verify(SERVED, bundle / "model", raw)
    sign_bundle(bundle, key)
    signed = (bundle / "preprocess.py").read_bytes()
    check_signed_manifest(bundle / "model", trusted)
    with pytest.raises(ContractError, match=r"no preprocess.py that is signed"):
        verify(SERVED, bundle / "model", None)
    with pytest.raises(ContractError, match=r"preprocess.py is not signed"):
        verify(SERVED, bundle / "model", b"class Preprocess: pass\n")
    (tmp_path / "stock").mkdir()
    with pytest.raises(ContractError, match=r"no manifest.json, so nobody signed it"):
        verify(SERVED, tmp_path / "stock", signed)


class Artifact:
    """As the SDK's: a file, and the hash that was registered with it."""

    def __init__(self, path: Path) -> None:
        self.path, self.hash, self.asked = path, "", 0

    def get_local_copy(self, **_: Any) -> str:
        self.asked += 1
        return str(self.path)


@pytest.fixture
def host(trusted: TrustedKeys) -> Iterator[Any]:
    """clearml-serving's own class, guarded, and as it was afterwards."""
    from clearml_serving.serving.preprocess_service import BasePreprocessRequest

    before: Any = BasePreprocessRequest.__init__
    guard(BasePreprocessRequest, trusted)
    yield BasePreprocessRequest
    BasePreprocessRequest.__init__ = before


def build(host: Any, path: Path, engine: str = "triton", artifact: str = "code") -> Any:
    endpoint = SimpleNamespace(
        engine_type=engine, preprocess_artifact=artifact, serving_url="e", model_id=None, version=""
    )
    task = SimpleNamespace(artifacts={"code": Artifact(path)}, id="t")
    return host(model_endpoint=endpoint, task=task)


def test_the_gateway_runs_signed_code_and_no_other(
    host: Any, bundle: Path, key: SigningKey, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(ran)!r}, 'w')\nclass Preprocess: pass\n")
    with pytest.raises(ValueError, match=r"preprocess.py is not signed"):
        build(host, evil)
    with pytest.raises(ValueError, match=r"preprocess.py is not signed"):
        build(host, bundle / "preprocess.py")
    sign_bundle(bundle, key)
    built = build(host, bundle / "preprocess.py")
    assert built._preprocess.endpoint.bundle_version == open_bundle(bundle).manifest.bundle_version
    code = bundle / "preprocess.py"
    code.write_bytes(code.read_bytes() + f"open({str(ran)!r}, 'w')\n".encode())
    with pytest.raises(ValueError, match="is not what 'me' signed"):
        build(host, code)
    for engine, artifact in (("sklearn", "code"), ("custom", "code"), ("triton", "")):
        with pytest.raises(ValueError, match="no preprocess.py that is signed"):
            build(host, code, engine, artifact)
    assert not ran.exists()


def test_without_keys_the_gateway_changes_nothing() -> None:
    class Host:
        pass

    guard(Host, None)
    assert "__init__" not in vars(Host)


def test_keys_are_for_their_owner_and_never_replaced(tmp_path: Path) -> None:
    path, key = new_key("a.b", tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (tmp_path / "a.b.pub").read_text().strip() == key.public
    assert read_key(path).public == key.public
    with pytest.raises(Failure, match="is there already and is never replaced"):
        new_key("a.b", tmp_path)
    with pytest.raises(Failure, match="a key's name takes"):
        new_key("../x", tmp_path)
    path.chmod(0o644)
    with pytest.raises(Failure, match="others can read"):
        read_key(path)
    path.write_text("nothing")
    with pytest.raises(Failure, match="is no signing key"):
        read_key(path)


def test_no_key_is_made_beside_the_public_one_of_another(tmp_path: Path) -> None:
    (tmp_path / "c.pub").write_text("another's")
    with pytest.raises(Failure, match=r"c\.pub is there already"):
        new_key("c", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["c.pub"]
    assert (tmp_path / "c.pub").read_text() == "another's"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("me", "entry 1 is no NAME:KEY"),
        ("me:AAAA", "entry 1 is no NAME:KEY"),
        ("me:" + "A" * 43 + "= x", "entry 2 is no NAME:KEY"),
        ("me:" + "A" * 43 + "= me:" + "B" * 43 + "=", "names a key twice"),
    ],
)
def test_a_list_of_keys_that_cannot_be_read_lets_nobody_in(text: str, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        read_trusted_keys({TRUSTED_KEYS_VARIABLE: text})


def test_no_keys_are_no_check() -> None:
    assert read_trusted_keys({}) is None
    assert read_trusted_keys({TRUSTED_KEYS_VARIABLE: "  "}) is None


@pytest.mark.slow
@settings(max_examples=100)
@given(st.binary(max_size=200), st.text(max_size=80))
def test_no_bytes_raise_anything_but_a_contract_error(raw: bytes, text: str) -> None:
    keys = TrustedKeys(dict([parse_public(SigningKey("me", KEY).public)]))
    for content in (raw, b"# signature: me " + b"A" * 86 + b"==\n" + raw):
        with pytest.raises(ContractError):
            check_signed_preprocess(content, keys)
    with contextlib.suppress(ContractError):
        read_trusted_keys({TRUSTED_KEYS_VARIABLE: text})


def test_the_command_line_makes_a_key_and_signs(bundle: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        return subprocess.run(
            [CLI, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    said = run("signing-key", "new", "me")
    assert f"{TRUSTED_KEYS_VARIABLE}={(tmp_path / 'me.pub').read_text()}" in said
    assert "is signed by me" in run("sign", "bundle", "me.key")


def test_who_is_ended_while_it_is_signed_keeps_the_signed_one_of_before(
    bundle: Path, key: SigningKey, trusted: TrustedKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sign_bundle(bundle, key).manifest
    other = write_small(bundle.parent / "other", Parts(scale=2.0))

    def ended(*_: object) -> None:
        raise KeyboardInterrupt

    with content_of(other, bundle.parent) as content:
        with monkeypatch.context() as played:
            played.setattr(SigningKey, "sign", ended)
            with pytest.raises(KeyboardInterrupt):
                write_bundle(content, bundle, key)
        assert open_bundle(bundle).manifest == before
    with content_of(other, bundle.parent) as content:
        written = write_bundle(content, bundle, key)
    assert open_bundle(bundle) == written
    assert written.manifest.bundle_version == other.manifest.bundle_version
    assert sorted(path.name for path in bundle.parent.iterdir()) == ["bundle", "other"]


def test_another_bundles_signed_code_is_not_this_ones(
    bundle: Path, key: SigningKey, trusted: TrustedKeys, tmp_path: Path
) -> None:
    other = write_small(tmp_path / "other", Parts(scale=2.0)).folder
    for folder in (bundle, other):
        sign_bundle(folder, key)
    with pytest.raises(Refused, match="deploy them together"):
        verify(SERVED, bundle / "model", (other / "preprocess.py").read_bytes())
