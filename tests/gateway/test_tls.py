"""TLS at the front: what is spoken, renewed and asked for; a wrong file is no start."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pty
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

from tests.engine.triton_server import wait_until
from tests.gateway.certificates import Authority, Pair, PrivateKey, serial
from tests.gateway.conftest import Server, Session
from transformer_serving.contract.replacement import replace_file
from transformer_serving.gateway.asgi import Receive, Scope, Send, send_json
from transformer_serving.gateway.server import supervisor
from transformer_serving.gateway.server.http import HttpServer
from transformer_serving.gateway.server.kept_tls import KeptTls
from transformer_serving.gateway.server.listener import listen
from transformer_serving.gateway.server.tls import Tls
from transformer_serving.gateway.server.worker_order import WorkerOrder

BODY = orjson.dumps({"text": "a"})
POST = b"POST /serve/ours HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
SOON_S = 90


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(session: Session, authority: Authority) -> Iterator[Server]:
    pair = authority.sign("server")
    running = session.gateway(*pair.gateway(), "--workers=2").start()
    try:
        wait_until(lambda: is_ready(running, authority.client()), SOON_S)
        yield running
    finally:
        running.stop()


def is_ready(server: Server, context: ssl.SSLContext) -> bool:
    try:
        return b" 200 " in ask(server, context, b"GET /health/ready HTTP/1.1\r\nhost: a\r\n\r\n")
    except OSError:
        assert server.process.poll() is None, server.log.read_text()
        return False


def ask(server: Server, context: ssl.SSLContext, request: bytes) -> bytes:
    with secured(server, context) as connection:
        connection.sendall(request)
        return connection.recv(65536)


def secured(server: Server, context: ssl.SSLContext) -> ssl.SSLSocket:
    return context.wrap_socket(server.connect(), server_hostname="127.0.0.1")


def shown(server: Server, context: ssl.SSLContext) -> int:
    """The serial number of the certificate that a new connection is shown."""
    with secured(server, context) as connection:
        return serial(connection.getpeercert(binary_form=True))


def post(server: Server, context: ssl.SSLContext) -> bytes:
    return ask(server, context, POST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_request_is_answered(
    server: Server, authority: Authority, version: ssl.TLSVersion
) -> None:
    context = authority.client()
    context.minimum_version = context.maximum_version = version
    assert post(server, context).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("old", ["-tls1", "-tls1_1"])
def test_old_protocols_are_refused(server: Server, old: str) -> None:
    """By openssl's own client, which is told to offer them all the same."""
    done = subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", old,
         "-cipher", "DEFAULT@SECLEVEL=0"],
        input="", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "SSL alert number" in done.stderr


def test_plain_http_is_no_way_in(server: Server, authority: Authority) -> None:
    with server.connect() as connection:
        connection.sendall(POST + b"content-length: 0\r\n\r\n")
        assert b"HTTP" not in heard(connection)
    assert post(server, authority.client()).startswith(b"HTTP/1.1 200")


def test_a_renewed_certificate_is_shown_while_requests_go_on(
    server: Server, authority: Authority
) -> None:
    context = authority.client()
    before, workers = shown(server, context), server.workers()
    pair = authority.sign("server")
    renewed = serial(ssl.PEM_cert_to_DER_cert(pair.cert.read_text()))
    assert renewed != before
    answers = set()

    def all_new() -> bool:
        answers.add(post(server, context)[:12])
        return not set(workers) & set(server.workers()) and len(server.workers()) == 2

    wait_until(all_new, SOON_S)
    assert {shown(server, context) for _ in range(20)} == {renewed}
    assert answers == {b"HTTP/1.1 200"}


def test_a_handshake_that_began_before_a_renewal_ends_in_an_answer(
    server: Server, authority: Authority
) -> None:
    """Whoever has just been taken by the worker that makes way has its answer there, its last."""
    context = authority.client()
    told = server.log.read_text().count("makes way")
    server.process.send_signal(signal.SIGHUP)
    taken: deque[socket.socket] = deque()

    def makes_way() -> bool:
        taken.append(server.connect())
        if len(taken) > 20:
            taken.popleft().close()
        return server.log.read_text().count("makes way") > told

    wait_until(makes_way, SOON_S)
    answers = []
    for connection in taken:
        with context.wrap_socket(connection, server_hostname="127.0.0.1") as secure:
            secure.sendall(POST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
            answers.append(secure.recv(65536))
    assert {answer[:12] for answer in answers} == {b"HTTP/1.1 200"}
    assert any(b"connection: close" in answer for answer in answers)
    wait_until(lambda: server.log.read_text().count("makes way") > told + 1, SOON_S)


def test_a_certificate_that_is_none_changes_nothing(server: Server, authority: Authority) -> None:
    context = authority.client()
    before, pair = shown(server, context), Pair(*map(Path, options_of(server)))
    whole = pair.cert.read_text()
    try:
        pair.cert.write_text(whole[:100])
        wait_until(lambda: "the old certificate stays" in server.log.read_text(), SOON_S)
        assert shown(server, context) == before
    finally:
        pair.cert.write_text(whole)


@pytest.fixture
def alone(session: Session, tmp_path: Path) -> Iterator[tuple[Server, Authority]]:
    """One worker, and the authority of its certificate."""
    authority = Authority(tmp_path)
    running = session.gateway(*authority.sign("server").gateway()).start()
    try:
        wait_until(lambda: is_ready(running, authority.client()), SOON_S)
        yield running, authority
    finally:
        running.stop()


def kill_the_worker(server: Server, context: ssl.SSLContext) -> None:
    """That serves, and wait for the one after it."""
    log = server.log.read_text()
    (worker,) = (one for one in server.workers() if f"worker {one.pid} serves" in log)
    worker.kill()
    wait_until(lambda: worker not in server.workers() and is_ready(server, context), SOON_S)


def test_a_worker_that_dies_in_the_middle_of_a_renewal_is_replaced(
    alone: tuple[Server, Authority],
) -> None:
    """The key on the disk is the next one's, its certificate not there yet."""
    server, authority = alone
    context, pair = authority.client(), Pair(*map(Path, options_of(server)))
    before = shown(server, context)
    pair.key.write_text(authority.sign("next").key.read_text())
    wait_until(lambda: "the old certificate stays" in server.log.read_text(), SOON_S)
    kill_the_worker(server, context)
    assert shown(server, context) == before


def test_a_pair_that_no_worker_starts_with_takes_nobody_down(
    alone: tuple[Server, Authority], tmp_path: Path
) -> None:
    """An RSA key of three primes, which OpenSSL and cryptography know and ring does not."""
    server, authority = alone
    context, pair = authority.client(), Pair(*map(Path, options_of(server)))
    before, strange = shown(server, context), Pair(tmp_path / "s.pem", tmp_path / "s-key.pem")
    openssl(
        "genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -pkeyopt rsa_keygen_primes:3 "
        f"-out {strange.key}",
        f"req -x509 -key {strange.key} -out {strange.cert} -subj /CN=a -days 2",
    )
    Tls(strange.cert, strange.key).check()
    pair.key.write_text(strange.key.read_text())
    pair.cert.write_text(strange.cert.read_text())
    wait_until(lambda: "ended in its start" in server.log.read_text(), SOON_S)
    kill_the_worker(server, context)
    assert shown(server, context) == before
    renewed = serial(ssl.PEM_cert_to_DER_cert(authority.sign("server").cert.read_text()))
    wait_until(lambda: shown(server, context) == renewed, SOON_S)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the supervisor starts instead of workers."""
    made: list[Any] = []

    def worker(order: WorkerOrder, tls: KeptTls | None) -> Any:
        one = SimpleNamespace(pid=len(made), tls=tls, status=None, silent_seconds=0, started=False)
        one.close = lambda: None
        made.append(one)
        return one

    monkeypatch.setattr(supervisor, "WorkerProcess", worker)
    return made


@pytest.fixture
def kept(tmp_path: Path) -> KeptTls:
    pair = Authority(tmp_path).sign("server")
    return KeptTls(Tls(pair.cert, pair.key))


@pytest.fixture
def running(kept: KeptTls, made: list[Any]) -> Iterator[supervisor.Supervisor]:
    """With one worker."""
    order = WorkerOrder("app", -1, -1, -1, 16, 5.0, 10.0)
    with socket.socket() as unused:
        running = supervisor.Supervisor(unused, 1, order, 0.0, kept)
        running._replace()
        yield running


def test_a_certificate_that_is_renewed_before_the_first_worker_starts_is_noticed(
    kept: KeptTls, made: list[Any]
) -> None:
    """The files were read, and the port is not ours yet: another gateway is leaving it."""
    replace_file(kept.source.cert, kept.source.cert.read_bytes())
    order = WorkerOrder("app", -1, -1, -1, 16, 5.0, 10.0)
    with socket.socket() as unused:
        starting = supervisor.Supervisor(unused, 1, order, 0.0, kept)
        starting._replace()
        starting._renew()
    (first, successor) = made
    assert (first.tls, successor.tls is kept) == (kept, False)


def test_who_is_replaced_during_a_renewal_is_renewed_as_well(
    running: supervisor.Supervisor, made: list[Any], kept: KeptTls
) -> None:
    """It starts with what was served with; what is newer has not been yet."""
    running._on_renew()
    running._renew()
    (old, successor) = made
    assert (old.tls, successor.tls is kept) == (kept, False)
    old.status, old.started = 1, True
    running._replace()
    assert made[2].tls is kept
    assert running._outdated == [old, made[2]]


def test_a_renewal_that_failed_for_a_passing_reason_is_tried_again(
    running: supervisor.Supervisor,
    made: list[Any],
    kept: KeptTls,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After a pause each time, and each reason is told once."""
    now, lacking, tries = 100.0, [errno.ENOSPC, errno.ENOSPC, errno.EMFILE], 0
    create = os.memfd_create

    def created(name: str) -> int:
        nonlocal tries
        tries += 1
        if lacking:
            raise OSError(number := lacking.pop(0), os.strerror(number))
        return create(name)

    monkeypatch.setattr(os, "memfd_create", created)
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now))
    replace_file(kept.source.cert, kept.source.cert.read_bytes())
    for tried in range(1, 4):
        for _ in range(3):
            running._renew()
            assert (tries, len(made)) == (tried, 1)
        now += supervisor._RENEWAL_PAUSE_S
    assert [message.rpartition(": ")[2] for message in caplog.messages] == [
        "No space left on device",
        "Too many open files",
    ]
    running._renew()
    (_, successor) = made
    assert successor.tls is not kept
    successor.tls.copy.check()
    # It is done: nothing is read again.
    now, before = now + supervisor._RENEWAL_PAUSE_S, tries
    running._renew()
    assert tries == before


def test_who_asks_again_is_told_again(
    running: supervisor.Supervisor, kept: KeptTls, caplog: pytest.LogCaptureFixture
) -> None:
    kept.source.key.unlink()
    for told in (1, 2):
        running._on_renew()
        running._renew()
        running._renew()
        assert len(caplog.messages) == told


def test_the_copies_lie_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key from a Secret comes to no disk, and none is needed for it."""
    pair = Authority(tmp_path).sign("server")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nothing"))
    kept = KeptTls(Tls(pair.cert, pair.key))
    for number in kept.numbers:
        assert os.readlink(f"/proc/self/fd/{number}").startswith("/memfd:")
        # For those alone that it is handed to.
        assert not os.get_inheritable(number)


def test_the_copies_last_whatever_becomes_of_the_files(tmp_path: Path) -> None:
    pair = Authority(tmp_path).sign("server")
    written = [pair.cert.read_bytes(), pair.key.read_bytes()]
    kept = KeptTls(Tls(pair.cert, pair.key))
    for path in (pair.cert, pair.key):
        path.unlink()
    kept.copy.check()
    assert [path.read_bytes() for path in kept.copy.files()] == written
    # Nobody but this process finds them.
    assert all(os.fstat(number).st_nlink == 0 for number in kept.numbers)
    with pytest.raises(ValueError, match=r"server.pem and .*No such file"):
        KeptTls(kept.source)


def options_of(server: Server) -> list[str]:
    return [part.partition("=")[2] for part in server.command if part.startswith("--tls")]


def test_callers_certificates(session: Session, tmp_path: Path) -> None:
    """With an authority for callers, one who shows none of its certificates is not heard."""
    (tmp_path / "foreign").mkdir()
    ours, foreign = Authority(tmp_path), Authority(tmp_path / "foreign")
    server = session.gateway(*ours.sign("server").gateway(), f"--tls-client-ca={ours.cert}").start()
    known = ours.client(ours.sign("caller"))
    try:
        wait_until(lambda: is_ready(server, known), SOON_S)
        assert post(server, known).startswith(b"HTTP/1.1 200")
        for context in (ours.client(), ours.client(foreign.sign("caller"))):
            assert not is_ready(server, context)
    finally:
        server.stop()


def test_an_exchanged_authority_lets_its_own_callers_in_and_no_others(
    session: Session, tmp_path: Path
) -> None:
    """The way to forget a caller's certificate."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    ours, old, new = (Authority(tmp_path / name) for name in ("", "old", "new"))
    named = tmp_path / "callers.pem"
    named.write_bytes(old.cert.read_bytes())
    server = session.gateway(*ours.sign("server").gateway(), f"--tls-client-ca={named}").start()
    known, next_known = (ours.client(one.sign("caller")) for one in (old, new))
    try:
        wait_until(lambda: is_ready(server, known), SOON_S)
        assert not is_ready(server, next_known)
        workers = server.workers()
        replace_file(named, new.cert.read_bytes())
        wait_until(lambda: server.workers() and not set(workers) & set(server.workers()), SOON_S)
        assert post(server, next_known).startswith(b"HTTP/1.1 200")
        assert not is_ready(server, known)
    finally:
        server.stop()


def test_silent_handshakes_hold_nobody_up(server: Server, authority: Authority) -> None:
    silent = [server.connect() for _ in range(200)]
    try:
        assert post(server, authority.client()).startswith(b"HTTP/1.1 200")
        for connection in silent:
            connection.settimeout(60)
            assert b"HTTP" not in heard(connection)
    finally:
        for connection in silent:
            connection.close()


def heard(connection: socket.socket) -> bytes:
    """Until it is closed, in whatever way."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(100):
            received += piece
    return received


def test_a_wrong_file_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, other = authority.sign("server"), authority.sign("other")
    Tls(pair.cert, pair.key, authority.cert).check()
    with pytest.raises(ValueError, match="server.pem and .*other-key.pem are no certificate"):
        Tls(pair.cert, other.key).check()
    with pytest.raises(ValueError, match="No such file"):
        Tls(pair.cert, tmp_path / "nothing.pem").check()
    with pytest.raises(ValueError, match="holds no certificates"):
        Tls(pair.cert, pair.key, pair.key).check()


TAKEN: dict[str, Callable[[], PrivateKey]] = {
    **{
        f"RSA of {bits} bits": partial(rsa.generate_private_key, 65537, bits)
        for bits in (2048, 3072, 4096)
    },
    "ECDSA over secp256r1": partial(ec.generate_private_key, ec.SECP256R1()),
    "ECDSA over secp384r1": partial(ec.generate_private_key, ec.SECP384R1()),
    "Ed25519": ed25519.Ed25519PrivateKey.generate,
}


@pytest.mark.parametrize("kind", TAKEN)
async def test_a_key_that_is_taken_is_one_to_serve_with(kind: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("server", key=TAKEN[kind]())
    tls = Tls(pair.cert, pair.key)
    tls.check()
    listener = listen("127.0.0.1", 0, 16)
    port: int = listener.getsockname()[1]
    server = HttpServer(empty, listener, backlog=16, connections=16, tls=tls)
    server.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=authority.client())
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        async with asyncio.timeout(60):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
    finally:
        server.stop()
    async with asyncio.timeout(60):
        await server.ended.wait()


async def empty(scope: Scope, receive: Receive, send: Send) -> None:
    await send_json(send, 200, {})


NOT_TAKEN: dict[str, Callable[[], PrivateKey]] = {
    "RSA of 2560 bits": partial(rsa.generate_private_key, 65537, 2560),
    "RSA of 5120 bits": partial(rsa.generate_private_key, 65537, 5120),
    "ECDSA over secp521r1": partial(ec.generate_private_key, ec.SECP521R1()),
    "Ed448": ed448.Ed448PrivateKey.generate,
    "RSA with an exponent below 65537": partial(rsa.generate_private_key, 3, 2048),
}


@pytest.mark.parametrize("kind", NOT_TAKEN)
def test_a_key_that_openssl_alone_can_use_is_named(kind: str, tmp_path: Path) -> None:
    pair = Authority(tmp_path).sign("server", key=NOT_TAKEN[kind]())
    with pytest.raises(ValueError, match=rf"server-key.pem is {kind}, which .* it takes RSA"):
        Tls(pair.cert, pair.key).check()


def test_a_certificate_of_the_first_version_is_named(tmp_path: Path) -> None:
    """As openssl before 3.2 signs a request without more being said."""
    pair = Pair(tmp_path / "old.pem", tmp_path / "old-key.pem")
    request = tmp_path / "request.pem"
    openssl(
        f"req -new -newkey rsa:2048 -nodes -subj /CN=a -keyout {pair.key} -out {request}",
        f"x509 -req -in {request} -signkey {pair.key} -out {pair.cert} -days 2",
    )
    if x509.load_pem_x509_certificate(pair.cert.read_bytes()).version is not x509.Version.v1:
        pytest.skip("this openssl makes none of it")
    with pytest.raises(ValueError, match=r"old.pem is a certificate of X.509 version 1"):
        Tls(pair.cert, pair.key).check()


def test_a_certificate_of_the_second_version_is_named(tmp_path: Path) -> None:
    pair = Authority(tmp_path).sign("server")
    # OpenSSL asks neither for the version nor whether the signature is of what is there now.
    third, second = (bytes([0xA0, 3, 2, 1, written]) for written in (2, 1))
    raw = ssl.PEM_cert_to_DER_cert(pair.cert.read_text())
    pair.cert.write_text(ssl.DER_cert_to_PEM_cert(raw.replace(third, second, 1)))
    with pytest.raises(ValueError, match=r"server.pem is a certificate of X.509 version 2, which"):
        Tls(pair.cert, pair.key).check()


@pytest.mark.parametrize("curve", ["prime256v1", "secp384r1"])
@pytest.mark.parametrize("form", ["-param_enc explicit", "-conv_form compressed", "-no_public"])
@pytest.mark.parametrize("container", ["sec1", "pkcs8"])
def test_an_ec_key_that_openssl_alone_can_read_is_refused_with_what_mends_it(
    curve: str, form: str, container: str, tmp_path: Path
) -> None:
    made, written, signed = (tmp_path / name for name in ("made.pem", "key.pem", "cert.pem"))
    sign = "req -x509 -subj /CN=a -days 2 -key {} -out {}"
    openssl(f"ecparam -name {curve} -genkey -out {made}", f"ec -in {made} {form} -out {written}")
    if container == "pkcs8":
        openssl(f"pkcs8 -topk8 -nocrypt -in {written} -out {made}")
        written = made
    openssl(sign.format(written, signed))
    with pytest.raises(ValueError, match=rf"{written.name} lacks its curve's name") as refused:
        Tls(signed, written).check()
    mended = tmp_path / "mended.pem"
    command = str(refused.value).partition("openssl ")[2]
    openssl(command.replace("NEW_KEY", str(mended)).replace("KEY", str(written)))
    if form != "-no_public":
        with pytest.raises(ValueError, match=r"cert.pem lacks .* sign a new one for .*mended.pem"):
            Tls(signed, mended).check()
        openssl(sign.format(mended, signed))
    Tls(signed, mended).check()


def test_a_key_behind_its_curves_parameters_is_taken(tmp_path: Path) -> None:
    """As openssl ecparam writes it. Parameters alone name no curve of a key that follows them."""
    named, key, cert = (tmp_path / name for name in ("named.pem", "key.pem", "cert.pem"))
    openssl(
        f"ecparam -name prime256v1 -genkey -out {named}",
        f"req -x509 -subj /CN=a -days 2 -key {named} -out {cert}",
        f"ec -in {named} -param_enc explicit -out {key}",
    )
    Tls(cert, named).check()
    parameters, _, _ = named.read_text().partition("-----BEGIN EC PRIVATE KEY")
    key.write_text(parameters + key.read_text())
    with pytest.raises(ValueError, match=r"key.pem lacks its curve's name"):
        Tls(cert, key).check()


def openssl(*commands: str) -> None:
    for command in commands:
        subprocess.run(["openssl", *command.split()], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("label", ["TRUSTED CERTIFICATE", "X509 CERTIFICATE"])
@pytest.mark.parametrize("part", ["cert", "client_ca"])
def test_a_certificate_by_another_name_is_refused_with_what_mends_it(
    label: str, part: str, tmp_path: Path
) -> None:
    """OpenSSL reads it. Also behind a plain one, as Granian would leave it out."""
    authority = Authority(tmp_path)
    pair = authority.sign("server")
    tls = Tls(pair.cert, pair.key, authority.cert)
    path: Path = getattr(tls, part)
    plain = path.read_text()
    other = plain.replace("BEGIN CERTIFICATE", f"BEGIN {label}")
    other = other.replace("END CERTIFICATE", f"END {label}")
    for text in (other, plain + other) if part == "client_ca" else (other,):
        path.write_text(text)
        with pytest.raises(ValueError, match=rf"{path.name} has a {label}, .* openssl") as refused:
            tls.check()
    path.write_text(other)
    mended = tmp_path / "mended.pem"
    command = str(refused.value).partition("openssl ")[2]
    openssl(command.replace("NEW_FILE", str(mended)).replace("FILE", str(path)))
    replace(tls, **{part: mended}).check()


@pytest.mark.parametrize("part", ["cert", "key", "client_ca"])
def test_a_file_with_a_byte_order_mark_is_refused_with_what_mends_it(
    part: str, tmp_path: Path
) -> None:
    """As editors of Windows write it, which OpenSSL skips."""
    authority = Authority(tmp_path)
    pair = authority.sign("server")
    tls = Tls(pair.cert, pair.key, authority.cert)
    path: Path = getattr(tls, part)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    with pytest.raises(ValueError, match=rf"{path.name} begins with a byte order mark") as refused:
        tls.check()
    mended = tmp_path / "mended.pem"
    command = str(refused.value).rpartition(": ")[2]
    command = command.replace("NEW_FILE", str(mended)).replace("FILE", str(path))
    subprocess.run(command, shell=True, check=True)
    replace(tls, **{part: mended}).check()


def test_a_byte_order_mark_before_other_text_harms_nothing(tmp_path: Path) -> None:
    """As of `openssl pkcs12`, which writes what is in its bag before each block."""
    authority = Authority(tmp_path)
    pair = authority.sign("server")
    for path in (pair.cert, pair.key, authority.cert):
        path.write_bytes(b"\xef\xbb\xbfBag Attributes\n" + path.read_bytes())
    Tls(pair.cert, pair.key, authority.cert).check()


@pytest.mark.parametrize("part", ["cert", "key", "client_ca"])
def test_a_file_that_is_taken_away_while_they_are_read_is_a_refusal(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal by another name, which is not there for a moment: the old one stays."""
    authority = Authority(tmp_path)
    pair = authority.sign("server")
    tls = Tls(pair.cert, pair.key, authority.cert)
    gone: Path = getattr(tls, part)
    loads = tls._load_pair

    def load_pair(self: Tls, context: ssl.SSLContext) -> None:
        loads(context)
        gone.unlink()

    monkeypatch.setattr(Tls, "_load_pair", load_pair)
    with pytest.raises(ValueError, match="No such file"):
        tls.check()


def test_an_authority_of_revocations_alone_is_refused(tmp_path: Path) -> None:
    """OpenSSL loads them as well."""
    authority = Authority(tmp_path)
    pair = authority.sign("server")
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    made = x509.CertificateRevocationListBuilder().issuer_name(x509.Name([])).last_update(now)
    revoked = made.next_update(now + timedelta(days=1)).sign(key, hashes.SHA256())
    authority.cert.write_bytes(revoked.public_bytes(serialization.Encoding.PEM))
    with pytest.raises(ValueError, match=r"authority.pem holds no certificates: no line begins"):
        Tls(pair.cert, pair.key, authority.cert).check()


def test_a_key_with_a_passphrase_is_refused_without_asking_for_it(tmp_path: Path) -> None:
    pair = Authority(tmp_path).sign("server")
    locked = tmp_path / "locked.pem"
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    # In a process with a terminal, where OpenSSL would ask.
    code = (
        "import sys; from pathlib import Path; "
        "from transformer_serving.gateway.server.tls import Tls; "
        "Tls(Path(sys.argv[1]), Path(sys.argv[2])).check()"
    )
    main, terminal = pty.openpty()
    try:
        done = subprocess.Popen(
            ["setsid", "--ctty", sys.executable, "-c", code, str(pair.cert), str(locked)],
            stdin=terminal, stdout=terminal, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            _, said = done.communicate(timeout=60)
        finally:
            done.kill()
    finally:
        os.close(main)
        os.close(terminal)
    assert b"locked.pem asks for a passphrase; write it without one" in said


def test_a_wrong_file_is_no_start(session: Session, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, other = authority.sign("server"), authority.sign("other")
    server = session.gateway(*Pair(pair.cert, other.key).gateway()).start()
    try:
        assert server.process.wait(60) == 2
    finally:
        server.stop()
    assert "are no certificate and its key" in server.log.read_text()
