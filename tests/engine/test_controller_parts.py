"""Small parts of the controller: shared configurations, Triton's log, figures, status lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.serving import FIELDS
from transformer_serving.contract.identity import stated_version
from transformer_serving.engine.controller.control_plane.served import Problem, Served
from transformer_serving.engine.controller.figures import Figure, read_figures
from transformer_serving.engine.controller.files.shared_config import shared
from transformer_serving.engine.controller.records import (
    FailedChange,
    Failures,
    Kind,
    ModelRecord,
    Version,
    failed_again,
)
from transformer_serving.engine.controller.status import (
    BEFORE_IT,
    Proving,
    changes,
    endpoint_rows,
)
from transformer_serving.engine.controller.triton.log import TritonLog
from transformer_serving.engine.model_config import ModelConfig, TensorConfig, build_config


def config(labels: int = 2, **changed: object) -> ModelConfig:
    options = {
        "name": "m",
        "backend": "onnxruntime",
        "inputs": (TensorConfig("input_ids", "INT32", (-1,)),),
        "outputs": (TensorConfig("output", "FP32", (labels,)),),
        "max_batch_size": 8,
        **changed,
    }
    return build_config(**options)  # type: ignore[arg-type]


def test_one_more_label_leaves_the_size_open_for_both_versions() -> None:
    both = shared(config(3), [config(2)])
    assert both is not None
    assert list(both.output[0].dims) == [-1]
    for changed in (
        {"max_queue_delay_us": 9},
        {"max_batch_size": 16},
        {"parameters": {"intra_op_thread_count": "2", "num_streams": "1"}},
    ):
        assert shared(config(2, **changed), [config(2)]) == config(2, **changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"backend": "openvino_text"},
        {"file_name": "other.onnx"},
        {"max_batch_size": 0},
        # Callers of the old version go on with calls as large as before.
        {"max_batch_size": 4},
        {"parameters": {"precision": "bf16"}},
        {"parameters": {"max_positions": "64"}},
        {"inputs": (TensorConfig("ids", "INT32", (-1,)),)},
        {"inputs": (TensorConfig("input_ids", "INT64", (-1,)),)},
    ],
)
def test_versions_that_cannot_share_a_configuration(changed: dict[str, object]) -> None:
    assert shared(config(2, **changed), [config(2)]) is None


def test_an_int8_graph_is_not_run_under_the_hint_of_a_bf16_one() -> None:
    """Both are the same backend's, and in files of one name (docs/decisions/precisions.md)."""
    int8, bf16 = (
        config(backend="openvino_text", parameters={"precision": precision})
        for precision in ("int8", "bf16")
    )
    assert shared(bf16, [int8]) is None
    assert shared(int8, [bf16]) is None
    assert shared(bf16, [bf16]) == bf16


@pytest.mark.parametrize(
    ("new", "old", "both"),
    [
        ("512", None, None),
        (None, "512", None),
        ("512", "0", None),
        ("512", "256", "512"),
        ("256", "512", "512"),
        ("512", "512", "512"),
    ],
)
def test_versions_of_other_longest_texts_share_the_longest(
    new: str | None, old: str | None, both: str | None
) -> None:
    def text_model(positions: str | None) -> ModelConfig:
        parameters = {"precision": "bf16"}
        if positions is not None:
            parameters["max_positions"] = positions
        return config(backend="openvino_text", parameters=parameters)

    assert shared(text_model(new), [text_model(old)]) == text_model(both)
    # What a call of a language model may hold of its memory goes by it.
    assert shared(
        config(backend="openvino_generate", parameters={"max_positions": "512"}),
        [config(backend="openvino_generate", parameters={"max_positions": "256"})],
    ) is None  # fmt: skip


def test_a_longest_text_that_is_no_number_keeps_the_old_one_its_configuration() -> None:
    old, wrong = (
        config(backend="openvino_text", parameters={"max_positions": positions})
        for positions in ("512", "many")
    )
    assert shared(wrong, [old]) is None
    assert shared(old, [wrong]) is None


def test_versions_of_another_graph_optimization_share_no_configuration() -> None:
    other = config()
    other.optimization.graph.level = 1
    assert shared(config(), [other]) is None


def test_the_cause_of_a_failed_load_is_found_in_tritons_log(tmp_path: Path) -> None:
    path = tmp_path / "triton.log"
    path.write_text("E1120 22:37:16.650757 4712 x.cc:1] \"Poll failed for 'm': old\"\n")
    log = TritonLog(path)
    mark = log.mark()
    assert log.cause(mark, "m") is None
    with path.open("a") as file:
        file.write('I1120 22:37:17.650757 4712 x.cc:1] "loading: m"\n')
        file.write("E1120 22:37:18.650757 4712 x.cc:7] \"Poll failed for model 'm': no file\"\n")
    assert log.cause(mark, "m") == "Poll failed for model 'm': no file"
    with path.open("a") as file:
        file.write("[libprotobuf ERROR] Error parsing text-format inference.ModelConfig: 3:9: No\n")
    assert log.cause(mark, "m") == "config.pbtxt 3:9: No"
    assert TritonLog(None).cause(0, "m") is None


def test_figures_of_models_are_read_from_the_metrics_page() -> None:
    page = """
# HELP nv_inference_count Number of inferences
nv_inference_count{model="senti_ment",version="101"} 25
nv_inference_queue_duration_us{gpu_uuid="GPU-1",model="m",version="1"} 1.5e+06
nv_inference_count{model=".proof",version="101"} 7
nv_cpu_utilization 0.5
nv_gpu_power_usage{gpu_uuid="GPU-1"} 40
"""
    assert list(read_figures(page)) == [
        Figure("nv_inference_count", "senti_ment", "101", 25.0),
        Figure("nv_inference_queue_duration_us", "m", "1", 1.5e6),
    ]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("# bundle-version: 12\n", 12),
        ("a\n" * 19 + "# bundle-version: 12", 12),
        ("a\n" * 20 + "# bundle-version: 12", None),
        ("x = '# bundle-version: 12'", None),
        ("", None),
        ("# bundle-version: 12\r\n", 12),
    ],
)
def test_the_bundle_line_counts_in_the_first_twenty_lines(text: str, version: int | None) -> None:
    assert stated_version(text.encode()) == version


def test_a_row_tells_of_what_is_wanted_first() -> None:
    version = Version(1, "t", "", "onnxruntime", 1, True, "m", "c", 0.0)
    records = {"m": ModelRecord("m", "m", "a", (version,), "")}
    old = failed_again(None, "a", "damaged", 1.0)
    new = failed_again(None, "b", "refused", 2.0)
    served = Served("m", "m", "id", None, "", FIELDS, "b", "c")
    proving = Proving((), lambda _: None)

    def reason(failures: Failures, wanted: dict[str, Served] | None) -> str | None:
        return endpoint_rows(wanted, [], records, failures, {}, proving)[0].reason

    both = {("m", "a"): old, ("m", "b"): new}
    assert reason(both, {"m": served}) == "refused"
    assert reason(both, None) == "damaged"
    assert reason({("m", "a"): old}, {"m": served}) == "damaged"
    assert reason({("n", "b"): new}, {"m": served}) == "loading"


def test_what_served_before_is_no_bundle_that_cannot_be_loaded() -> None:
    """Its grace cannot be ended on a full disk; an alert and doctor would call for a rollback."""
    version = Version(2, "t", "", "onnxruntime", 2, True, "m", "c", 0.0)
    before = replace(version, number=1, bundle_version=1, drop_at=1.0)
    records = {"m": ModelRecord("m", "m", "a", (version, before), "")}
    full = "OSError: No space left on device"
    proving = Proving((), lambda _: None)

    def told(of: str, *loaded: int) -> tuple[str | None, Kind | None, int, bool]:
        failures = {("m", of): failed_again(None, of, full, 1.0, kind=Kind.UNREACHED)}
        [row] = endpoint_rows(None, [], records, failures, {"m": frozenset(loaded)}, proving)
        return row.reason, row.failure, row.tries, row.ready

    end = records["m"].retirement
    cannot = f"{BEFORE_IT}: {full}"
    assert told("a", 2) == told(end, 2) == told(end, 1, 2) == (cannot, None, 0, True)
    assert told("a", 1) == (full, Kind.UNREACHED, 1, False)
    # That does not keep it from being loaded.
    assert told(end, 1) == ("loading", None, 0, False)
    records["m"] = replace(records["m"], versions=(version,))
    assert told(end, 2) == (None, None, 0, True)


def test_a_failed_proof_stays_failed_while_it_is_tried_again() -> None:
    """The alert on it fires after two minutes; the first try comes after one."""
    version = Version(1, "t", "", "onnxruntime", 1, True, "m", "c", 0.0)
    records = {"m": ModelRecord("m", "m", "a", (version,), "")}
    refused = replace(failed_again(None, "a", "differs", 1.0), unproven_bundle=1)
    away = failed_again(refused, "a", "Triton went away", 60.0, kind=Kind.AWAY)
    loading = failed_again(refused, "a", "no memory", 60.0)

    def proof(failure: FailedChange, *now: str) -> str | None:
        failures = {("m", "a"): failure}
        return endpoint_rows(None, [], records, failures, {}, Proving(now, lambda _: None))[0].proof

    assert proof(refused) == proof(refused, "m") == proof(away, "m") == proof(away) == "failed"
    assert proof(loading) == "unproven"
    assert proof(loading, "m") == "proving"


def test_of_the_first_bundle_nothing_is_said_between_its_proof_and_its_service() -> None:
    """It may have passed, and is not the one in service yet."""
    served = Served("m", "m", "id", None, "", FIELDS, "b", "c")

    def proof(*now: str) -> tuple[str | None, str | None]:
        proving = Proving(now, lambda _: None)
        [row] = endpoint_rows({"m": served}, [], {}, {}, {}, proving)
        return row.proof, row.reason

    assert proof("m")[0] == "proving"
    assert proof() == (None, "loading")


def test_a_bundle_that_was_uploaded_again_has_not_lost_its_bytes() -> None:
    """Where both are in service as one version, by the code that belongs to it."""
    early = Version(7, "t", "", "onnxruntime", 7, True, "early", "c", 0.0)
    stock = replace(early, number=1)
    late = replace(stock, model_id="late")
    problem = Problem("a (overwritten)", "", "early", "its bytes are gone", replaced_by="late")

    def told(*versions: Version) -> bool:
        records = {
            str(at): ModelRecord(str(at), str(at), "f", (version,), "")
            for at, version in enumerate(versions)
        }
        rows = endpoint_rows({}, [problem], records, {}, {}, Proving((), lambda _: None))
        return [row.endpoint for row in rows] == ["a (overwritten)"]

    assert not told(early, late)
    assert not told(stock, early, late)
    # By code of somebody else it may be what replaced it.
    assert told(stock, late)
    assert told(early)
    assert told(early, replace(late, bundle_version=8))
    bare = replace(early, number=1, bundle_version=None, verified=False)
    assert told(bare, replace(bare, model_id="late"))


def test_only_changes_are_told() -> None:
    rows = endpoint_rows(None, [], {}, {}, None, Proving((), lambda _: None))
    assert rows == []
    assert changes(rows, rows) == []


def test_a_name_in_clearml_forges_no_line_of_the_log() -> None:
    problem = Problem("a\n2026-11-30 ERROR b: gone\x1b[31m", "", "", "no")
    rows = endpoint_rows({}, [problem], {}, {}, None, Proving((), lambda _: None))
    [line] = changes([], rows)
    assert line.isprintable()
    assert "a\\n2026-11-30 ERROR b: gone" in line
