"""GETs of other protocols: lists of models, what a model is, whether it is ready."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf import json_format  # type: ignore[import-untyped]  # no stubs wanted
from jsonschema_rs import Draft202012Validator
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from preprocess.card import card_of
from preprocess.generation.request import TextTask
from tests.gateway.figures import read
from tests.gateway.spoken import OLDER, OTHER, Spoken, SpokenDoor
from tests.preprocess.speaking import endpoint_of, speaker
from tests.text_engine import fields as text_fields
from transformer_serving.contract.dialects import DIALECTS
from transformer_serving.contract.endpoint import read_endpoint
from transformer_serving.contract.errors import KINDS, ServingError
from transformer_serving.contract.heads import TASKS
from transformer_serving.contract.keys import Key, digest_of, keys_text, new_key, now
from transformer_serving.gateway.golden_rounds import GoldenResult
from transformer_serving.gateway.keys import Keys
from transformer_serving.gateway.openapi.document import document
from transformer_serving.gateway.routes import call_of

TEI_DOCUMENT = json.loads(Path(__file__).with_name("tei_openapi.json").read_text())
ALL, BOUND, FIGURES, ROUTED = (new_key() for _ in range(4))
ROWS = (
    Key("all", digest_of(ALL), now()),
    Key("bound", digest_of(BOUND), now(), ("sentence-embedding", "rerank/2")),
    Key("figures", digest_of(FIGURES), now(), metrics=True),
    Key("routed", digest_of(ROUTED), now(), ("split",)),
)


@pytest.fixture
def door() -> SpokenDoor:
    """After a round in which every endpoint was well but one."""
    return after_a_round(SpokenDoor())


@pytest.fixture
def locked(tmp_path: Path) -> SpokenDoor:
    path = tmp_path / "keys.json"
    path.write_text(keys_text(ROWS))
    return after_a_round(SpokenDoor(Keys(path)))


def after_a_round(door: SpokenDoor) -> SpokenDoor:
    rounds = door.app._rounds
    rounds.first_done = True
    for name in (*TASKS, "rerank/2", OLDER):
        state, reason = ("failed", "503") if name == "fill-mask" else ("ok", None)
        rounds.results[name] = GoldenResult(name, state, "", time.monotonic(), True, reason)
    return door


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("path", "documented"),
    [
        ("/v2/health/ready", "/v2/health/ready"),
        ("/v2/models/fill-mask/ready", "/v2/models/{name}/ready"),
        ("/v1/models/fill-mask", "/v1/models/{name}"),
        ("/tei/fill-mask/health", "/tei/{name}/health"),
    ],
)
async def test_what_is_not_ready_says_so_as_the_document_has_it(path: str, documented: str) -> None:
    door = after_a_round(SpokenDoor())
    door.app._shutdown.stopping = True
    told = await door.ask("GET", path)
    assert told.status == 503
    cards = await door.app._cards.listed(None)
    said = document({}, cards, None)["paths"][documented]["get"]["responses"]["503"]
    schema = said["content"]["application/json"]["schema"]
    Draft202012Validator(schema).validate(told.json)


async def test_a_version_of_an_endpoint_is_described_to_tei(door: SpokenDoor) -> None:
    told = await door.ask("GET", "/tei/rerank/versions/2/info")
    assert (told.status, told.json["model_id"]) == (200, "rerank/2")
    for path in ("/tei/rerank/", "/tei/rerank/versions/2", "/tei/rerank/versions/2/"):
        assert (await door.ask("GET", path)).status == 200
    assert (await door.ask("GET", "/tei/rerank/versions/3/info")).status == 404


async def test_parameters_of_generated_text_are_tensors_of_their_kinds(door: SpokenDoor) -> None:
    endpoint = read_endpoint(json.dumps(text_fields()))
    assert endpoint.generation is not None
    task = TextTask(endpoint.generation)
    door.processor.built("rerank", Spoken(SimpleNamespace(endpoint=endpoint, task=task)))
    told = await door.ask("GET", "/v2/models/rerank")
    assert {row["name"]: row["datatype"] for row in told.json["inputs"]} == {
        "text": "BYTES", "max_new_tokens": "INT64", "min_new_tokens": "INT64",
        "do_sample": "BOOL", "temperature": "FP32", "top_p": "FP32", "top_k": "INT64",
        "min_p": "FP32",
        "repetition_penalty": "FP32", "frequency_penalty": "FP32", "presence_penalty": "FP32",
        "seed": "INT64",
        "stop": "BYTES", "return_full_text": "BOOL", "num_return_sequences": "INT64",
        "truncate": "INT64", "logprobs": "BOOL", "ignore_eos": "BOOL",
    }  # fmt: skip


def two_of_each(inputs: list[dict[str, Any]], names: set[str]) -> list[dict[str, Any]]:
    """Tensors of two texts, or of as many as their metadata allows."""
    text = "a kettle of [MASK]"
    return [
        {**row, "shape": [count], "data": [f"{text} {at}" for at in range(count)]}
        for row in inputs
        if row["name"] in names
        for count in [2 if row["shape"] == [-1] else row["shape"][0]]
    ]


@pytest.mark.parametrize("task", TASKS)
async def test_metadata_is_of_what_answers_where_the_output_is_named(
    door: SpokenDoor, task: str
) -> None:
    told = (await door.ask("GET", f"/v2/models/{task}")).json
    asked = speaker(task)
    card = card_of(asked.endpoint, asked.task)
    names = {row["name"] for row in card["fields"]}
    names |= {row["name"] for row in card["parameters"] if row["required"]}
    inputs = two_of_each(told["inputs"], names)
    body = {"inputs": inputs, "outputs": [{"name": "output"}]}
    [answered] = asked.ask("v2.infer", body)["outputs"]
    [said] = told["outputs"]
    assert (said["name"], said["datatype"]) == (answered["name"], answered["datatype"])
    sizes = zip(said["shape"], answered["shape"], strict=True)
    assert all(size in (-1, got) for size, got in sizes)
    # Without its name it is texts of JSON whatever the task.
    [plain] = asked.ask("v2.infer", {"inputs": inputs})["outputs"]
    assert (plain["datatype"], plain["shape"][1:]) == ("BYTES", [1])


@pytest.mark.parametrize(
    ("task", "name"), [("rerank", "query"), ("sentence-similarity", "source_sentence")]
)
async def test_an_input_of_one_text_has_no_room_for_more(
    door: SpokenDoor, task: str, name: str
) -> None:
    told = (await door.ask("GET", f"/v2/models/{task}")).json
    shapes = {row["name"]: row["shape"] for row in told["inputs"]}
    assert shapes[name] == [1]
    asked = speaker(task)
    card = card_of(asked.endpoint, asked.task)
    inputs = two_of_each(told["inputs"], {row["name"] for row in card["fields"]})
    for row in inputs:
        if row["name"] == name:
            row |= {"shape": [2], "data": ["a", "b"]}
    with pytest.raises(ServingError) as refused:
        asked.ask("v2.infer", {"inputs": inputs})
    assert refused.value.field == name


@pytest.mark.parametrize("path", ["/v2/models/split", "/v2/models/split/config", "/tei/split/info"])
async def test_a_canarys_name_says_whom_to_ask(door: SpokenDoor, path: str) -> None:
    door.processor._canary_route["split"] = {"endpoints": ["rerank", "rerank/2"]}
    told = await door.ask("GET", path)
    assert told.status == 422
    assert "canary" in told.json["error"]
    assert "convert" not in told.json["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/v2/health/ready", "/v2/models/rerank", "/v1/models", "/v1/models/fill-mask",
        "/tei/rerank/health", "/tei/rerank", "/tei/nobody/health", "/tei/rerank/info",
        "/tei/rerank/metrics", "/openapi.json", "/health/ready", "/hf/rerank", "/metrics",
        "/hf/rerank/health", "/hf/rerank/info", "/tgi/rerank/v1/models", "/v2/models/rerank/config",
    ],
)  # fmt: skip
async def test_head_gets_what_get_does_without_its_body(door: SpokenDoor, path: str) -> None:
    got, head = await door.ask("GET", path), await door.ask("HEAD", path)
    assert (head.status, head.raw) == (got.status, b"")
    # Figures change with every request.
    if "metrics" not in path:
        assert head.headers[b"content-length"] == b"%d" % len(got.raw)


async def test_what_has_no_version_is_its_own_first_to_v2(door: SpokenDoor) -> None:
    own = "fill-mask"
    told = (await door.ask("GET", f"/v2/models/{own}")).json
    assert told["versions"] == ["1"]
    first = await door.ask("GET", f"/v2/models/{own}/versions/1")
    assert (first.status, first.json) == (200, told)
    assert (await door.ask("GET", f"/v2/models/{own}/versions/1/ready")).status == 503
    for rest in ("", "/ready", "/config"):
        assert (await door.ask("GET", f"/v2/models/{own}/versions/2{rest}")).status == 404
        assert (await door.ask("GET", f"/v2/models/nobody/versions/1{rest}")).status == 404
    # To others a version is one.
    assert (await door.ask("GET", f"/tei/{own}/versions/1/info")).status == 404
    assert (await door.ask("GET", "/v2/models/rerank/versions/2")).json["versions"] == ["2"]


async def test_a_version_that_is_there_goes_before(door: SpokenDoor) -> None:
    door.processor.answers["rerank/1"] = door.processor.answers["rerank"]
    door.processor.changed()
    for name, task in (("rerank", "rerank"), ("rerank/1", "fill-mask")):
        door.processor.built(name, Spoken(speaker(task)))
    first = (await door.ask("GET", "/v2/models/rerank/versions/1")).json
    assert (first["versions"], first["inputs"][0]["name"]) == (["1"], "text")
    itself = (await door.ask("GET", "/v2/models/rerank")).json
    assert (itself["versions"], itself["inputs"][0]["name"]) == ([], "query")


async def test_a_keys_rights_are_those_of_whom_a_version_means(locked: SpokenDoor) -> None:
    for name, status in (("sentence-embedding", 200), ("fill-mask", 403), ("nobody", 403)):
        path = f"/v2/models/{name}/versions/1"
        told = await locked.ask("GET", path, headers=bearer(BOUND))
        assert told.status == status
        told = await locked.ask("POST", f"{path}/infer", b"{}", bearer(BOUND))
        assert (told.status == 403) == (status == 403)


@pytest.mark.parametrize("task", TASKS)
async def test_a_configuration_is_tritons_own_form_of_the_metadata(
    door: SpokenDoor, task: str
) -> None:
    told = (await door.ask("GET", f"/v2/models/{task}")).json
    config = (await door.ask("GET", f"/v2/models/{task}/config")).json
    assert config == (await door.ask("GET", f"/v2/models/{task}/versions/1/config")).json
    read = json_format.ParseDict(config, ModelConfig())
    assert (read.name, read.max_batch_size) == (task, 0)
    for side, rows in (("inputs", read.input), ("outputs", read.output)):
        assert [(row.name, list(row.dims)) for row in rows] == [
            (row["name"], row["shape"]) for row in told[side]
        ]
        types = [DataType.Name(row.data_type).removeprefix("TYPE_") for row in rows]
        assert types == [row["datatype"].replace("BYTES", "STRING") for row in told[side]]
    card = card_of(endpoint_of(task), speaker(task).task)
    required = {row["name"] for row in (*card["fields"], *card["parameters"]) if row["required"]}
    assert {row.name for row in read.input if not row.optional} == required


NEAR = [
    ("POST", "/tei/texts/decode", "tei"),
    ("GET", "/tei", "tei"),
    ("DELETE", "/tei/texts/versions/2/embed", "tei"),
    ("GET", "/v1/embeddings", "openai"),
    ("POST", "/v1/chat/messages", "openai"),
    ("GET", "/v1/chat/completions", "openai"),
    ("GET", "/v1/rerank", "cohere"),
    ("GET", "/v2/rerank", "cohere"),
    ("POST", "/v2", "v2"),
    ("GET", "/v2/models/texts/generate", "v2"),
    ("POST", "/v2/models/texts/generation", "v2"),
    ("GET", "/tgi/texts/generate", "tgi"),
    ("GET", "/hf/texts", "hf"),
]


@pytest.mark.parametrize(("method", "path", "spoken"), NEAR)
async def test_what_is_near_a_route_is_refused_in_its_dialect(
    door: SpokenDoor, locked: SpokenDoor, method: str, path: str, spoken: str
) -> None:
    dialect = DIALECTS[spoken]
    for asked, headers, code in (
        (door, {}, "unknown_endpoint"),
        (locked, bearer(ALL), "unknown_endpoint"),
        (locked, bearer(BOUND), "unknown_endpoint"),
        (locked, bearer(FIGURES), "forbidden"),
        (locked, {}, "unauthorized"),
    ):
        told = await asked.ask(method, path, headers=headers)
        error = ServingError(code, "")
        assert told.status == dialect.status(error) == KINDS[code].status
        assert set(told.json) == set(dialect.error_body(error))
        assert told.headers[b"x-request-id"]


@pytest.mark.parametrize("path", ["/", "/v3/models", "/v20", "/teipot", "/hfx/a", "/serve"])
def test_what_is_near_no_route_is_the_hosts(path: str) -> None:
    for root in ("", "/base"):
        assert call_of({"method": "GET", "path": root + path, "root_path": root}) is None


async def test_models_are_those_that_make_vectors(door: SpokenDoor) -> None:
    told = await door.ask("GET", "/v1/models")
    assert told.status == 200
    assert told.json["object"] == "list"
    assert [row["id"] for row in told.json["data"]] == ["sentence-embedding", "sentence-similarity"]
    assert all(set(row) == {"id", "object", "created", "owned_by"} for row in told.json["data"])
    assert told.headers[b"x-request-id"]


VECTORS = ["sentence-embedding", "sentence-similarity"]


@pytest.mark.parametrize(
    ("behind", "listed"),
    [
        (VECTORS, True),
        (["sentence-embedding"], True),
        (["sentence-embedding", "rerank"], False),
        (["sentence-embedding", OLDER], False),
        (["sentence-embedding", OTHER], False),
        (["sentence-embedding", "gone"], False),
        ([], False),
    ],
)
async def test_a_canary_is_listed_where_all_behind_it_can_be_asked(
    door: SpokenDoor, behind: list[str], listed: bool
) -> None:
    door.processor._canary_route["split"] = {"endpoints": behind}
    told = await door.ask("GET", "/v1/models")
    assert [row["id"] for row in told.json["data"]] == [*VECTORS, *["split"] * listed]
    paths = (await door.ask("GET", "/openapi.json")).json["paths"]
    assert ("split" in names_of(paths["/v1/embeddings"]["post"])) == listed
    assert ("split" in names_of(paths["/tei/{name}/embed"]["post"])) == listed


async def test_what_a_canary_answers_itself_has_its_name_in_the_document(door: SpokenDoor) -> None:
    door.processor._canary_route["split"] = {"endpoints": ["rerank", "rerank/2"]}
    door.processor._canary_route["fill-mask"] = {"endpoints": ["fill-mask", "sentence-embedding"]}
    told = (await door.ask("GET", "/openapi.json")).json["paths"]
    of_one = ("/v2/models/{name}", "/tei/{name}/info")
    for path in (*of_one, "/v2/models/{name}/ready", "/tei/{name}/health", "/v1/models/{name}"):
        names = set(names_of(told[path]["get"]))
        assert "rerank" in names
        assert ({"split", "fill-mask"} <= names) == (path not in of_one)
        assert ("split" in names) == ("fill-mask" in names)
    for path in ("/tei/{name}/rerank", "/v1/rerank"):
        assert names_of(told[path]["post"])[-1] == "split"
    assert "fill-mask" in names_of(told["/hf/{name}"]["post"])


@pytest.mark.parametrize(
    ("key", "names"),
    [
        (ALL, [*VECTORS, "split"]), (BOUND, ["sentence-embedding"]), (ROUTED, ["split"]),
    ],
    ids=["all", "bound", "routed"],
)  # fmt: skip
async def test_a_key_sees_the_canaries_that_it_may_ask(
    locked: SpokenDoor, key: str, names: list[str]
) -> None:
    locked.processor._canary_route["split"] = {"endpoints": VECTORS}
    told = await locked.ask("GET", "/v1/models", headers=bearer(key))
    assert [row["id"] for row in told.json["data"]] == names
    paths = (await locked.ask("GET", "/openapi.json", headers=bearer(key))).json["paths"]
    assert names_of(paths["/v1/embeddings"]["post"]) == names


def names_of(operation: dict[str, Any]) -> list[str]:
    """The endpoints that the document says can be asked there."""
    if "parameters" in operation:
        found: list[str] = operation["parameters"][0]["schema"]["enum"]
        return found
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    [named] = schema["properties"].values()
    names: list[str] = named["enum"]
    return names


@pytest.mark.parametrize("name", ["rerank", "rerank/2", OLDER])
async def test_one_model_is_what_two_protocols_ask(door: SpokenDoor, name: str) -> None:
    told = await door.ask("GET", f"/v1/models/{name}")
    assert told.status == 200
    assert (told.json["id"], told.json["object"], told.json["owned_by"]) == (
        name, "model", "transformer-serving",
    )  # fmt: skip
    assert (told.json["name"], told.json["ready"]) == (name, True)


async def test_a_model_that_is_not_well_is_not_ready(door: SpokenDoor) -> None:
    told = await door.ask("GET", "/v1/models/fill-mask")
    assert (told.status, told.json["ready"]) == (503, False)
    health = await door.ask("GET", "/tei/fill-mask/health")
    assert (health.status, health.json["error_type"]) == (503, "Unhealthy")
    door.processor.alive = False
    assert (await door.ask("GET", "/v1/models/rerank")).status == 503


async def test_a_canary_is_ready_where_all_behind_it_are(door: SpokenDoor) -> None:
    door.processor._canary_route["split"] = {"endpoints": ["rerank", "rerank/2"]}
    assert (await door.ask("GET", "/v1/models/split")).json["ready"]
    door.processor._canary_route["split"] = {"endpoints": ["rerank", "fill-mask"]}
    assert not (await door.ask("GET", "/v1/models/split")).json["ready"]


@pytest.fixture
def generating(door: SpokenDoor) -> SpokenDoor:
    """With text-generation at "rerank/2"."""
    endpoint = read_endpoint(json.dumps(text_fields()))
    assert endpoint.generation is not None
    task = TextTask(endpoint.generation)
    door.processor.built("rerank/2", Spoken(SimpleNamespace(endpoint=endpoint, task=task)))
    return door


async def test_text_generation_inferences_client_is_told_of_the_model(
    generating: SpokenDoor,
) -> None:
    told = await generating.ask("GET", "/tgi/rerank/versions/2/info")
    assert told.status == 200
    assert (told.json["model_id"], told.json["model_pipeline_tag"]) == (
        "rerank/2", "text-generation",
    )  # fmt: skip
    assert (told.json["max_total_tokens"], told.json["max_input_tokens"]) == (64, 63)
    assert told.json["max_input_length"] == 63
    assert (await generating.ask("GET", "/hf/rerank/2/info")).json == told.json
    other = await generating.ask("GET", "/tgi/rerank/info")
    assert (other.status, set(other.json)) == (422, {"error", "error_type"})
    listed = await generating.ask("GET", "/tgi/rerank/versions/2/v1/models")
    assert [row["id"] for row in listed.json["data"]] == ["rerank/2"]
    assert set(listed.json) == {"object", "data"}
    for path in ("info", "v1/models"):
        assert (await generating.ask("GET", f"/tgi/nobody/{path}")).status == 404


async def test_the_inference_apis_client_is_told_of_health_and_model(door: SpokenDoor) -> None:
    for name, status in (("rerank", 200), ("rerank/2", 200), ("fill-mask", 503), ("nobody", 404)):
        told = await door.ask("GET", f"/hf/{name}/health")
        assert told.status == status
        assert told.raw == b"" if status == 200 else set(told.json) == {"error"}
    told = await door.ask("GET", "/hf/sentence-embedding/info")
    assert told.json == (await door.ask("GET", "/tei/sentence-embedding/info")).json


async def test_an_unknown_model_is_told_in_each_form(door: SpokenDoor) -> None:
    told = await door.ask("GET", "/v1/models/nobody")
    assert (told.status, told.json["error"]["type"]) == (404, "not_found_error")
    for path in ("info", "health", "metrics"):
        told = await door.ask("GET", f"/tei/nobody/{path}")
        assert (told.status, set(told.json)) == (404, {"error", "error_type"})


@pytest.mark.parametrize("path", ["/health", "/ping", "/", ""])
@pytest.mark.parametrize("base", ["/tei/rerank", "/tgi/rerank", "/tgi/rerank/versions/2"])
async def test_health_of_a_server_of_one_model_has_no_body(
    door: SpokenDoor, base: str, path: str
) -> None:
    told = await door.ask("GET", base + path)
    assert (told.status, told.raw) == (200, b"")
    assert told.headers[b"content-length"] == b"0"


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        ("text-classification", "classifier"),
        ("rerank", "reranker"),
        ("sentence-embedding", "embedding"),
        ("fill-mask", "embedding"),
    ],
)
async def test_teis_info_tells_the_model_and_its_limits(
    door: SpokenDoor, task: str, kind: str
) -> None:
    told = (await door.ask("GET", f"/tei/{task}/info")).json
    assert told["model_id"] == told["served_model_name"] == task
    assert list(told["model_type"]) == [kind]
    assert told["max_client_batch_size"] == 10
    assert told["max_input_length"] == 24
    if kind != "embedding":
        labels = told["model_type"][kind]
        assert {number: name for name, number in labels["label2id"].items()} == {
            int(number): name for number, name in labels["id2label"].items()
        }


@pytest.mark.parametrize("task", TASKS)
async def test_teis_info_has_a_model_type_of_its_document(door: SpokenDoor, task: str) -> None:
    told = (await door.ask("GET", f"/tei/{task}/info")).json["model_type"]
    schema = {**TEI_DOCUMENT, "$ref": "#/components/schemas/ModelType"}
    Draft202012Validator(schema).validate(told)


@pytest.mark.parametrize(
    ("pooling", "told"), [("cls", "cls"), ("mean", "mean"), ("lasttoken", "last_token")]
)
async def test_teis_info_tells_the_pooling_by_its_name_there(
    door: SpokenDoor, pooling: str, told: str
) -> None:
    embedding = {
        "pooling": pooling, "normalize": False, "dimensions": 8, "similarity": "dot",
        "prompts": {}, "default_prompt": None,
    }  # fmt: skip
    made = speaker("sentence-embedding", head="token_vectors", embedding=embedding)
    door.processor.built("sentence-embedding", Spoken(made))
    info = (await door.ask("GET", "/tei/sentence-embedding/info")).json
    assert info["model_type"] == {"embedding": {"pooling": told}}


async def test_teis_info_of_older_code_is_refused(door: SpokenDoor) -> None:
    told = await door.ask("GET", f"/tei/{OLDER}/info")
    assert (told.status, "convert" in told.json["error"]) == (422, True)


@pytest.mark.parametrize("name", ["rerank", "split"])
async def test_teis_metrics_are_the_endpoints_alone(door: SpokenDoor, name: str) -> None:
    """A canary route's are those of all that it leads to, too."""
    door.processor._canary_route["split"] = {"endpoints": ["rerank", "rerank/2"]}
    figures = door.app._metrics
    figures.asked("shop")
    for endpoint in ("", "rerank", "rerank/2", "split", "fill-mask"):
        figures.refused("too_large", endpoint)
    told = await door.ask("GET", f"/tei/{name}/metrics")
    assert told.status == 200
    assert told.headers[b"content-type"].startswith(b"text/plain")
    assert b"shop" not in told.raw
    rows = [(figure, dict(labels).get("endpoint")) for figure, labels in read(told.raw.decode())]
    whose = {"rerank": {"rerank"}, "split": {"split", "rerank", "rerank/2"}}[name]
    assert {endpoint for _, endpoint in rows} == whose
    assert whose == {who for figure, who in rows if figure == "gateway_refused_total"}
    assert (await door.ask("GET", "/tei/nothing/metrics")).status == 404


async def test_a_key_sees_what_it_may_ask(locked: SpokenDoor) -> None:
    assert (await locked.ask("GET", "/v1/models")).status == 401
    told = await locked.ask("GET", "/v1/models", headers=bearer(BOUND))
    assert [row["id"] for row in told.json["data"]] == ["sentence-embedding"]
    for path, status in {
        "/v1/models/rerank/2": 200, "/v1/models/rerank": 403, "/tei/rerank/info": 403,
        "/tei/sentence-embedding/info": 200, "/tei/sentence-embedding/metrics": 403,
    }.items():  # fmt: skip
        assert (await locked.ask("GET", path, headers=bearer(BOUND))).status == status, path
    for path in ("/tei/rerank/metrics", "/tei/rerank/versions/2/metrics"):
        for key, status in ((ALL, 403), (FIGURES, 200)):
            told = await locked.ask("GET", path, headers=bearer(key))
            assert told.status == status, path
        assert (await locked.ask("GET", path)).status == 401
    assert (await locked.ask("GET", "/tei/rerank/info", headers=bearer(FIGURES))).status == 403


async def test_a_host_that_knows_no_endpoint_yet(door: SpokenDoor) -> None:
    door.processor.answers.clear()
    door.processor.changed()
    assert (await door.ask("GET", "/v1/models")).json["data"] == []
