"""The gRPC port with tritonclient, over the real app and a real Triton."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import orjson
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as messages, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.engine.triton_server import stopped, wait_until
from tests.free_ports import free_port
from tests.gateway.certificates import Authority, Pair, serial
from tests.gateway.conftest import ROOT, Server
from tests.gateway.test_leaving import figure
from tests.gateway.test_shutdown import tell_again
from tests.gateway.text_serving import MISSING, TextServing
from transformer_serving.contract.errors import KINDS
from transformer_serving.contract.keys import Key, digest_of, keys_text, new_key, now
from transformer_serving.gateway.access import KEYS_FILE, TLS_CERT, TLS_KEY
from transformer_serving.gateway.grpc_port.messages import (
    HEADER,
    body_of,
    infer_response,
    is_answered_raw,
)
from transformer_serving.gateway.grpc_port.statuses import STATUSES, status_of
from transformer_serving.gateway.settings import GRPC_PORT

TEXTS = ["a kettle of tea", "two"]
LIMIT = 100_000
KEY, OTHER = new_key(), new_key()


@dataclass(frozen=True)
class Door:
    """A gateway with such a port."""

    server: Server
    address: str

    def client(self) -> Any:
        return triton.InferenceServerClient(self.address)


@contextlib.contextmanager
def running(serving: TextServing, *options: str, **settings: str) -> Iterator[Door]:
    port = free_port()
    server = serving.gateway(f"--grpc-port={port}", *options, **settings).start()
    try:
        server.wait_for("/health/ready")
        yield Door(server, f"127.0.0.1:{port}")
    finally:
        server.stop()


@pytest.fixture(scope="module")
def door(text_serving: TextServing) -> Iterator[Door]:
    with running(text_serving, "--workers=2", TRANSFORMER_SERVING_MAX_BODY_BYTES=str(LIMIT)) as one:
        yield one


@pytest.fixture
def client(door: Door) -> Iterator[Any]:
    with door.client() as made:
        yield made


def tensor(name: str, values: Any, kind: str = "BYTES") -> Any:
    array = np.array(values, object if kind == "BYTES" else None)
    made = triton.InferInput(name, list(array.shape), kind)
    made.set_data_from_numpy(array)
    return made


def rows(result: Any) -> list[Any]:
    return [orjson.loads(row) for row in result.as_numpy("output").ravel()]


def test_the_answer_is_the_one_of_serve(door: Door, client: Any) -> None:
    result = client.infer("texts", [tensor("array_inputs", TEXTS)], request_id="7")
    assert rows(result) == door.server.post("texts", {"inputs": TEXTS}).json
    response = result.get_response()
    assert (response.id, response.model_name, response.model_version) == ("7", "texts", "")
    assert response.outputs[0].parameters["content_type"].string_param == "hg_jsonlist"
    top = client.infer(
        "texts", [tensor("inputs", TEXTS), tensor("top_k", np.array([2], np.int32), "INT32")]
    )
    own = {"inputs": TEXTS, "parameters": {"top_k": 2}}
    assert rows(top) == door.server.post("texts", own).json


def test_vectors_are_numbers(door: Door, client: Any) -> None:
    result = client.infer("vectors", [tensor("in", TEXTS)])
    assert result.as_numpy("output").dtype == np.float32
    wanted = door.server.post("vectors", {"inputs": TEXTS}).json
    assert result.as_numpy("output").tolist() == wanted


@pytest.fixture
def stub(door: Door) -> Iterator[Any]:
    with grpc.insecure_channel(door.address) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def request_of(name: str, *texts: str, **more: Any) -> Any:
    row = messages.ModelInferRequest.InferInputTensor(
        name="args", datatype="BYTES", shape=[len(texts)]
    )
    row.contents.bytes_contents.extend(text.encode() for text in texts)
    return messages.ModelInferRequest(model_name=name, inputs=[row], **more)


def test_contents_in_the_message_are_answered_so(door: Door, stub: Any) -> None:
    asked = request_of("texts", *TEXTS)
    top_k = asked.inputs.add(name="top_k", datatype="INT64", shape=[1])
    top_k.contents.int64_contents.append(1)
    response = stub.ModelInfer(asked)
    own = {"inputs": TEXTS, "parameters": {"top_k": 1}}
    assert [orjson.loads(row) for row in response.outputs[0].contents.bytes_contents] == (
        door.server.post("texts", own).json
    )
    assert not response.raw_output_contents
    named = request_of("vectors", *TEXTS)
    named.outputs.add(name="output")
    output = stub.ModelInfer(named).outputs[0]
    assert (output.datatype, list(output.shape)) == ("FP32", [2, 4])
    wanted = np.ravel(door.server.post("vectors", {"inputs": TEXTS}).json).tolist()
    assert list(output.contents.fp32_contents) == wanted


@pytest.mark.parametrize("raw_input", [True, False])
@pytest.mark.parametrize("said", [None, True, False])
@pytest.mark.parametrize("name", ["texts", "vectors"])
def test_who_names_the_output_is_answered_as_he_sent_or_said(
    door: Door, stub: Any, raw_input: bool, said: bool | None, name: str
) -> None:
    asked = request_of(name, *TEXTS)
    if raw_input:
        raws = [len(text).to_bytes(4, "little") + text.encode() for text in TEXTS]
        asked.raw_input_contents.append(b"".join(raws))
        asked.inputs[0].ClearField("contents")
    output = asked.outputs.add(name="output")
    if said is not None:
        output.parameters["binary_data"].bool_param = said
    response = stub.ModelInfer(asked)
    is_raw = raw_input if said is None else said
    assert (len(response.raw_output_contents), response.outputs[0].HasField("contents")) == (
        (1, False) if is_raw else (0, True)
    )
    wanted = door.server.post(name, {"inputs": TEXTS}).json
    if name == "vectors":
        numbers = np.array(wanted, np.float32)
        found = response.outputs[0].contents.fp32_contents
        if is_raw:
            found = np.frombuffer(response.raw_output_contents[0], "<f4")
        assert list(found) == numbers.ravel().tolist()
    elif not is_raw:
        texts = response.outputs[0].contents.bytes_contents
        assert [orjson.loads(text) for text in texts] == wanted


@pytest.mark.parametrize("count", [0, 1, 31, 32, 5000, 600_000])
def test_numbers_are_read_from_bytes_and_not_from_json(count: int) -> None:
    """However long their length is in the message; from JSON the loop would stand for long."""
    asked = request_of("vectors", *TEXTS)
    asked.outputs.add(name="output")
    text, _ = body_of(asked, None)
    [output] = orjson.loads(text)["outputs"]
    assert output["parameters"]["binary_data"] is True
    numbers = np.random.default_rng(5).normal(size=count).astype("<f4")
    told = {"name": "output", "datatype": "FP32", "shape": [1, count]}
    head = orjson.dumps({"model_name": "vectors", "outputs": [told]})
    response = infer_response(
        head + numbers.tobytes(), {HEADER: str(len(head))}, is_raw=is_answered_raw(asked)
    )
    read = messages.ModelInferResponse.FromString(response.SerializeToString())
    assert list(read.outputs[0].contents.fp32_contents) == numbers.tolist()
    assert not read.raw_output_contents


def test_who_names_no_output_is_answered_with_texts(door: Door, stub: Any) -> None:
    output = stub.ModelInfer(request_of("vectors", *TEXTS)).outputs[0]
    assert output.datatype == "BYTES"
    found = [orjson.loads(text) for text in output.contents.bytes_contents]
    assert found == door.server.post("vectors", {"inputs": TEXTS}).json


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    wait_until(lambda: client.is_model_ready("texts"), 60)
    assert not client.is_model_ready(MISSING)
    assert not client.is_model_ready("nothing")
    assert not client.is_model_ready("texts", "9")
    assert client.get_server_metadata().name == "transformer-serving"
    told = client.get_model_metadata("texts", as_json=True)
    assert told["inputs"][0] == {"name": "text", "datatype": "BYTES", "shape": ["-1"]}
    assert told["outputs"] == [{"name": "output", "datatype": "BYTES", "shape": ["-1", "1"]}]
    assert told["versions"] == ["1"]


def test_what_has_no_version_is_its_own_first(client: Any) -> None:
    wait_until(lambda: client.is_model_ready("texts", "1"), 60)
    told = (client.get_model_metadata("texts", version) for version in ("", "1"))
    assert next(told) == next(told)
    answers = [client.infer("texts", [tensor("in", TEXTS)], version) for version in ("", "1")]
    assert rows(answers[0]) == rows(answers[1])


def test_the_configuration_that_tritons_clients_ask(client: Any) -> None:
    for version in ("", "1"):
        told = client.get_model_config("texts", version).config
        assert (told.name, told.max_batch_size, told.input[0].name) == ("texts", 0, "text")
        assert (list(told.input[0].dims), told.input[0].optional) == ([-1], False)
        assert told.input[1].optional
        assert [row.name for row in told.output] == ["output"]
    for name, version in (("texts", "9"), ("nothing", "")):
        with pytest.raises(InferenceServerException, match="NOT_FOUND"):
            client.get_model_config(name, version)


def refusal(act: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as refused:
        act()
    return refused.value


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (request_of("nothing", "a"), "NOT_FOUND"),
        (request_of("", "a"), "NOT_FOUND"),
        (request_of("texts/versions/1", "a"), "NOT_FOUND"),
        (request_of("texts", "a", model_version="9"), "NOT_FOUND"),
        (request_of(MISSING, "a"), "UNAVAILABLE"),
        (request_of("holdings", "a"), "FAILED_PRECONDITION"),
        (request_of("texts", "[FAIL]"), "INTERNAL"),
        (request_of("texts", *["a"] * 101), "OUT_OF_RANGE"),
        (request_of("texts", "a" * LIMIT), "RESOURCE_EXHAUSTED"),
        (messages.ModelInferRequest(model_name="texts"), "INVALID_ARGUMENT"),
        (request_of("texts", "a", raw_input_contents=[b"a", b"b"]), "INVALID_ARGUMENT"),
        (request_of("texts", "a", raw_input_contents=[b"\xff" * 9]), "INVALID_ARGUMENT"),
        (
            request_of("texts", "a", parameters={"timeout": {"double_param": 5e6}}),
            "INVALID_ARGUMENT",
        ),
    ],
)
def test_what_is_refused(stub: Any, asked: Any, status: str) -> None:
    error = refusal(lambda: stub.ModelInfer(asked))
    assert error.code().name == status, error.details()
    assert error.details()


def test_what_is_no_message_is_counted(door: Door) -> None:
    malformed = {"code": "malformed_body"}
    before = figure(door.server, "gateway_refused_total", **malformed)
    with grpc.insecure_channel(door.address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        error = refusal(lambda: call(b"\xff\xff\xff"))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    wait_until(lambda: figure(door.server, "gateway_refused_total", **malformed) == before + 1, 60)
    assert "DecodeError" not in door.server.log.read_text()


def test_tritons_own_calls_are_none(client: Any) -> None:
    for act in (
        client.get_model_repository_index,
        lambda: client.load_model("texts"),
        client.get_inference_statistics,
    ):
        with pytest.raises(InferenceServerException, match="UNIMPLEMENTED"):
            act()


def test_every_error_has_a_status() -> None:
    assert set(STATUSES) == set(KINDS)
    for strange in (b"", b"[]", b'{"code": 1}', b'{"code": "new", "error": ""}', b"\xff"):
        assert status_of(strange)[0] is grpc.StatusCode.UNKNOWN


def test_what_a_caller_is_told_beside_the_answer(stub: Any) -> None:
    _, call = stub.ModelInfer.with_call(
        request_of("texts", "a"), metadata=[("x-request-id", "mine")]
    )
    told = dict(call.trailing_metadata())
    assert told["x-request-id"] == "mine"
    assert "infer;dur=" in told["server-timing"]


def not_answered(server: Server) -> float:
    return sum(figure(server, "requests_total", status=status) for status in ("499", "503", "504"))


def test_a_callers_deadline_is_the_requests(door: Door, stub: Any) -> None:
    before = not_answered(door.server)
    error = refusal(lambda: stub.ModelInfer(request_of("texts", "[SLOW]"), timeout=0.2))
    assert error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)
    wait_until(lambda: not_answered(door.server) == before + 1, 60)


@pytest.mark.parametrize(
    ("named", "left_s", "wanted"),
    [
        ({}, 60.0, 60_000),
        ({"timeout_ms": 100}, 60.0, 100),
        ({"timeout_ms": 90_000}, 60.0, 60_000),
        ({"timeout_ms": -1}, 60.0, -1),
        ({"timeout_ms": 100}, None, 100),
    ],
)
def test_the_sooner_of_the_callers_deadlines_is_passed_on(
    named: dict[str, int], left_s: float | None, wanted: int
) -> None:
    request = request_of("texts", "a")
    for name, value in named.items():
        request.parameters[name].int64_param = value
    text, _ = body_of(request, left_s)
    assert orjson.loads(text)["parameters"]["timeout_ms"] == wanted


def test_a_deadline_beside_one_in_a_tensor_is_no_mistake(door: Door, stub: Any) -> None:
    asked = request_of("texts", *TEXTS)
    asked.inputs.add(name="timeout_ms", datatype="INT32", shape=[1]).contents.int_contents.append(
        30_000
    )
    assert len(stub.ModelInfer(asked, timeout=60).outputs[0].contents.bytes_contents) == 2


def test_a_caller_that_cancels_has_left(door: Door, stub: Any, text_serving: TextServing) -> None:
    left = partial(figure, door.server, "requests_total", status="499")
    running = partial(figure, door.server, "call_texts_count")
    before, calls = left(), running()
    # A stopped engine answers nothing before the caller has left.
    with stopped(text_serving.triton):
        call = stub.ModelInfer.future(request_of("texts", "a"))
        wait_until(lambda: running() == calls + 1, 60)
        call.cancel()
        wait_until(lambda: left() == before + 1, 60)


def test_every_worker_listens(door: Door) -> None:
    port = int(door.address.rpartition(":")[2])
    workers = door.server.workers()
    assert len(workers) == 2
    for worker in workers:
        sockets = worker.net_connections("tcp")
        assert port in {one.laddr.port for one in sockets if one.status == "LISTEN"}


def test_keys(text_serving: TextServing, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    rows = [Key("all", digest_of(KEY), now()), Key("one", digest_of(OTHER), now(), ("vectors",))]
    path.write_text(keys_text(rows))
    port = free_port()
    settings = {KEYS_FILE.name: str(path), GRPC_PORT.name: str(port)}
    server = text_serving.gateway(**settings).start()
    try:
        server.wait_for("/health/ready")
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert stub.ServerLive(messages.ServerLiveRequest()).live
            asked = request_of("texts", "a")
            error = refusal(lambda: stub.ModelInfer(asked))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            error = refusal(lambda: stub.ModelReady(messages.ModelReadyRequest(name="texts")))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            error = refusal(lambda: stub.ModelInfer(asked, metadata=[("x-api-key", OTHER)]))
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED
            assert stub.ModelInfer(asked, metadata=[("authorization", f"Bearer {KEY}")]).outputs
    finally:
        server.stop()


def test_tls(text_serving: TextServing, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("server")
    port = free_port()
    settings = {
        TLS_CERT.name: str(pair.cert), TLS_KEY.name: str(pair.key), GRPC_PORT.name: str(port)
    }  # fmt: skip
    server = text_serving.gateway(**settings).start()
    try:
        with secured(port, authority) as channel:
            grpc.channel_ready_future(channel).result(120)
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert stub.ModelInfer(request_of("texts", "a")).outputs
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            error = refusal(lambda: stub.ServerLive(messages.ServerLiveRequest()))
            assert error.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        server.stop()


def secured(port: int, authority: Authority, pair: Pair | None = None) -> grpc.Channel:
    """Trusts this authority alone, and shows the pair."""
    shown = () if pair is None else (pair.key.read_bytes(), pair.cert.read_bytes())
    trusted = grpc.ssl_channel_credentials(authority.cert.read_bytes(), *shown)
    return grpc.secure_channel(f"127.0.0.1:{port}", trusted)


def test_callers_certificates(text_serving: TextServing, tmp_path: Path) -> None:
    """With an authority for callers, one who shows none of its certificates is not heard."""
    (tmp_path / "foreign").mkdir()
    ours, foreign = Authority(tmp_path), Authority(tmp_path / "foreign")
    port = free_port()
    options = (*ours.sign("server").gateway(), f"--tls-client-ca={ours.cert}")
    server = text_serving.gateway(f"--grpc-port={port}", *options).start()
    try:
        with secured(port, ours, ours.sign("caller")) as channel:
            grpc.channel_ready_future(channel).result(120)
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert stub.ModelInfer(request_of("texts", "a")).outputs
        for pair in (None, foreign.sign("caller")):
            with secured(port, ours, pair) as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                error = refusal(lambda stub=stub: stub.ServerLive(messages.ServerLiveRequest()))
                assert error.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        server.stop()


def test_a_renewed_certificate_is_shown(text_serving: TextServing, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    port = free_port()
    options = (f"--grpc-port={port}", *authority.sign("server").gateway())
    server = text_serving.gateway(*options).start()
    try:
        with secured(port, authority) as channel:
            grpc.channel_ready_future(channel).result(120)
        before, workers = serial_at(port, authority), server.workers()
        pair = authority.sign("server")
        renewed = serial(ssl.PEM_cert_to_DER_cert(pair.cert.read_text()))
        assert renewed != before
        wait_until(lambda: server.workers() and not set(workers) & set(server.workers()), 120)
        assert {serial_at(port, authority) for _ in range(10)} == {renewed}
        with secured(port, authority) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert stub.ModelInfer(request_of("texts", "a")).outputs
    finally:
        server.stop()


def serial_at(port: int, authority: Authority) -> int:
    """Of the certificate that a new connection is shown."""
    context = authority.client()
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        return serial(connection.getpeercert(binary_form=True))


def is_ready(client: Any) -> bool:
    with contextlib.suppress(InferenceServerException):
        return bool(client.is_server_ready())
    return False


def takes_no_call(door: Door) -> bool:
    """Also not on a connection of its own."""
    with door.client() as late:
        try:
            late.is_server_live(client_timeout=10)
        except InferenceServerException:
            return True
    return False


def test_what_runs_at_sigterm_is_answered(text_serving: TextServing) -> None:
    with (
        running(text_serving, TRANSFORMER_SERVING_DRAIN_SECONDS="600") as door,
        door.client() as client,
        ThreadPoolExecutor() as pool,
    ):
        client.infer("texts", [tensor("args", ["a"])])
        waiting = partial(figure, door.server, "waiting_tokens")
        ask = partial(pool.submit, client.infer, "texts", [tensor("args", ["a"])])
        # A stopped engine answers nothing before the signal has come.
        with stopped(text_serving.triton):
            held = [ask()]
            wait_until(lambda: waiting() > 0, 60)
            tokens = waiting()
            held += [ask(), ask()]
            wait_until(lambda: waiting() == 3 * tokens, 60)
            door.server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not is_ready(client), 60)
            tell_again(door.server)
            # The port takes no new call, and those that run go on.
            wait_until(lambda: takes_no_call(door), 60)
            assert not any(one.done() for one in held)
        assert all(len(rows(one.result())) == 1 for one in held)
        assert door.server.process.wait(60) == 0


@pytest.mark.parametrize("port", ["65536", "-1", "a"])
def test_a_port_that_is_none(text_serving: TextServing, port: str) -> None:
    server = text_serving.gateway(f"--grpc-port={port}").start()
    try:
        assert server.process.wait(60) == 2
    finally:
        server.stop()
    assert GRPC_PORT.name in server.log.read_text()


def test_nothing_of_it_is_imported_where_the_port_is_off() -> None:
    code = (
        "import sys, transformer_serving.gateway.front_door, "
        "transformer_serving.gateway.server.command, transformer_serving.gateway.server.worker; "
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=dict(os.environ), capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    loaded = set(done.stdout.split())
    assert not loaded & {"grpc", "tritonclient", "transformer_serving.gateway.grpc_port.port"}
