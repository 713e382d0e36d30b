"""The backend openvino_generate inside a real Triton, on a small Llama made here."""

from __future__ import annotations

import itertools
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import transformers
from tritonclient.utils import InferenceServerException

from tests.engine.streams import GREEDY, Caller, figures, options, part, until
from tests.engine.test_orphans import stubs
from tests.engine.test_proofs import row
from tests.engine.text_models import write_onnx
from tests.engine.triton_server import TritonServer, running_triton, wait_until
from tests.language_models import POSITIONS, save_language_model
from transformer_serving.contract.endpoint import Limits
from transformer_serving.contract.generation import Finish, Sampling
from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.builders.language_model import build_language_model
from transformer_serving.desk.bundle.triton_config import config_text
from transformer_serving.desk.conversion.language_model import endpoint_of
from transformer_serving.desk.export.language_model import export_language_model
from transformer_serving.desk.source.language_model import (
    LanguageModelSource,
    open_language_model,
)
from transformer_serving.engine.backends.generation.pipeline import (
    OpenVinoPipeline,
    _config,
    _scheduler,
)
from transformer_serving.engine.backends.generation.settings import GenerationSettings
from transformer_serving.engine.backends.model_settings import ModelError
from transformer_serving.engine.backends.openvino_quiet import core, openvino
from transformer_serving.engine.backends.precision import LIMIT_VARIABLE
from transformer_serving.engine.controller.metrics import MetricsPage

pytestmark = pytest.mark.slow

LIMITS = Limits(8, 1000, 1000, 8)
_numbers = itertools.count()
# What is about a text that still runs is tried again where it had come to its end: it takes a part
# of a second, for which a machine may stand still.
TRIES = 10
LOWERED = 100.0


class Built:
    """The Llama's files, and transformers' own model."""

    def __init__(self, folder: Path) -> None:
        self.source: LanguageModelSource = open_language_model(
            str(save_language_model("llama", folder / "llama"))
        )
        place = folder / "files"
        place.mkdir()
        graph = export_language_model(self.source)
        self.files: EngineFiles = build_language_model("fp32", graph, self.source, place)
        self.reference: Any = transformers.AutoModelForCausalLM.from_pretrained(
            str(self.source.folder), dtype=torch.float32
        ).eval()
        self.reference.generation_config = transformers.GenerationConfig()

    def greedy(self, ids: Sequence[int], new: int, **more: Any) -> list[int]:
        found = self.reference.generate(
            torch.tensor([list(ids)]),
            attention_mask=torch.ones((1, len(ids)), dtype=torch.int64),
            max_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
            **more,
        )
        return list(found[0, len(ids) :].tolist())

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        with torch.inference_mode():
            return self.reference(torch.tensor([list(ids)])).logits[0].float()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("llama"))


def serve(server: TritonServer, built: Built, **parameters: str) -> str:
    """A model of its own in the server's repository; its name."""
    name = f"llama{next(_numbers)}"
    folder = server.repository / name / "1"
    folder.mkdir(parents=True)
    for path in built.files.files:
        shutil.copyfile(path, folder / path.name)
    files = replace(built.files, parameters={**built.files.parameters, **parameters})
    (folder.parent / "config.pbtxt").write_text(
        config_text(endpoint_of(built.source, LIMITS), files)
    )
    server.client().load_model(name)
    return name


@pytest.fixture(scope="module")
def llama(triton_server: TritonServer, built: Built) -> str:
    return serve(triton_server, built)


def prompts(seed: int, *lengths: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 380, length).tolist() for length in lengths]


def test_greedy_text_is_transformers_alone_and_beside_others(
    triton_server: TritonServer, built: Built, llama: str
) -> None:
    asked = prompts(1, 1, 5, 31, 32, 33, 100, 300)
    wanted = [built.greedy(ids, 24) for ids in asked]
    assert len({tuple(ids) for ids in wanted}) == len(wanted)
    for ids, want in zip(asked, wanted, strict=True):
        alone = Caller(triton_server, llama, ids, options(24))
        assert alone.end() is Finish.LENGTH
        assert alone.ids == want
        assert alone.states[-1] == [Finish.LENGTH, len(ids), 24]
    together = [Caller(triton_server, llama, ids, options(24)) for ids in asked]
    for caller, want in zip(together, wanted, strict=True):
        caller.end()
        assert caller.ids == want


def ends_early(built: Built) -> tuple[list[int], list[int], int]:
    """A prompt, what is written on, and a token in the middle of it that is not there before."""
    [ids] = prompts(2, 9)
    whole = built.greedy(ids, 24)
    stop = next(one for at, one in enumerate(whole) if at >= 5 and one not in whole[:at])
    return ids, whole, stop


def test_a_stop_token_ends_a_sequence_and_is_its_last(
    triton_server: TritonServer, built: Built, llama: str
) -> None:
    ids, whole, stop = ends_early(built)
    caller = Caller(triton_server, llama, ids, options(24, eos_ids=(stop, 7)))
    assert caller.end() is Finish.STOP
    assert caller.ids == whole[: whole.index(stop) + 1]
    penalized = replace(GREEDY, repetition_penalty=1.3)
    caller = Caller(triton_server, llama, ids, options(24, sampling=penalized))
    caller.end()
    assert caller.ids == built.greedy(ids, 24, repetition_penalty=1.3) != whole


def test_no_end_comes_before_the_least_number_of_tokens(
    triton_server: TritonServer, built: Built, llama: str
) -> None:
    ids, whole, stop = ends_early(built)
    plain = whole[: whole.index(stop) + 1]
    for least in (1, len(plain), len(plain) + 4, 30):
        sampling = replace(GREEDY, min_new_tokens=least)
        caller = Caller(
            triton_server, llama, ids, options(24, eos_ids=(stop, 7), sampling=sampling)
        )
        caller.end()
        wanted = built.greedy(ids, 24, eos_token_id=[stop, 7], min_new_tokens=min(least, 24))
        assert caller.ids == wanted
        assert (caller.ids == plain) is (least < len(plain))
    # Whoever goes past every end has none to wait for.
    sampling = replace(GREEDY, min_new_tokens=5)
    caller = Caller(triton_server, llama, ids, options(24, sampling=sampling))
    caller.end()
    assert caller.ids == whole


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
def test_openvino_genai_has_not_mended_its_penalties(
    built: Built, tmp_path: Path, name: str
) -> None:
    """A newer one has where this fails: then they can be offered again, by what
    docs/decisions/generation.md says of them.

    Which text is written does not depend on what all scores have in common, but for its rule.
    """
    write_lowered(built, tmp_path)
    settings = GenerationSettings(built.source.generation.vocabulary, POSITIONS, 16)
    inner = OpenVinoPipeline(tmp_path, settings)._inner
    [ids] = prompts(1, 5)
    config = _config(options(16))
    setattr(config, name, 2.0)
    handle = inner.add_request(0, openvino.Tensor(np.array([ids], np.int64)), config)
    while inner.has_non_finished_requests():
        inner.step()
    made: list[int] = []
    while handle.can_read():
        made += [one for output in handle.read().values() for one in output.generated_ids]
    openais = penalized(built, ids, 16, by_sign=False, **{name: 2.0})
    assert made == penalized(built, ids, 16, by_sign=True, **{name: 2.0}) != openais
    assert max(Counter(made).values()) > max(Counter(openais).values())


def write_lowered(built: Built, folder: Path) -> None:
    """The model's files, but with scores that are all below 0."""
    for path in built.files.files:
        shutil.copyfile(path, folder / path.name)
    [graph] = [path for path in built.files.files if path.name == "openvino_model.xml"]
    model = core().read_model(graph)
    [result] = model.get_results()
    scores, opset = result.input_value(0), openvino.opset15
    lowered = opset.add(scores, opset.constant(np.float32(-LOWERED))).output(0)
    result.input(0).replace_source_output(lowered)
    scores.get_tensor().set_names(set())
    lowered.get_tensor().set_names({"logits"})
    openvino.save_model(model, folder / graph.name, compress_to_fp16=False)


def penalized(
    built: Built,
    ids: list[int],
    new: int,
    *,
    by_sign: bool,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
) -> list[int]:
    """https://platform.openai.com/docs, "Frequency and presence penalties", or what is added to a
    score below 0."""
    made: list[int] = []
    for _ in range(new):
        scores = built.logits([*ids, *made])[-1] - LOWERED
        for token, count in Counter(made).items():
            off = count * frequency_penalty + presence_penalty
            scores[token] -= -off if by_sign and scores[token] < 0 else off
        made.append(int(scores.argmax()))
    return made


def test_logprobs_are_of_the_models_own_distribution(
    triton_server: TritonServer, built: Built, llama: str
) -> None:
    [ids] = prompts(3, 20)
    warm = Sampling(True, 2.0, 0.9, 40, 1.0)
    caller = Caller(triton_server, llama, ids, options(12, sampling=warm, seed=3, logprobs=True))
    caller.end()
    rows = built.logits([*ids, *caller.ids]).log_softmax(-1)[len(ids) - 1 : -1]
    own = rows.gather(1, torch.tensor(caller.ids)[:, None])[:, 0]
    np.testing.assert_allclose(caller.logprobs, own.numpy(), atol=2e-3)


def test_a_seed_gives_the_same_text_in_any_company(triton_server: TritonServer, llama: str) -> None:
    sampling = Sampling(True, 1.5, 1.0, 0, 1.0)
    [ids] = prompts(4, 12)

    def sampled(seed: int, new: int = 24) -> Caller:
        return Caller(triton_server, llama, ids, options(new, sampling=sampling, seed=seed))

    alone = sampled(11)
    alone.end()
    company = [sampled(seed, 40) for seed in range(6)]
    company[0].first.wait(20)
    again = [sampled(11), sampled(12), sampled(11)]
    more = [sampled(seed, 9) for seed in range(20, 26)]
    for one in (*company, *again, *more):
        one.end()
    assert again[0].ids == alone.ids == again[2].ids
    assert again[1].ids != alone.ids
    high = sampled(11 + 2**32)
    high.end()
    assert high.ids != alone.ids
    assert len({tuple(one.ids) for one in company}) == len(company)


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k", "min_p"),
    [
        (0.8, 1.0, 5, 0), (1.3, 0.7, 0, 0), (1.0, 1.0, 0, 0), (1.3, 0.8, 12, 0), (1.3, 1.0, 0, 0.2),
        (1.3, 0.7, 0, 0.2), (1.3, 0.8, 12, 0.2),
    ],
)  # fmt: skip
def test_samples_are_distributed_as_transformers_would(
    triton_server: TritonServer,
    built: Built,
    llama: str,
    temperature: float,
    top_p: float,
    top_k: int,
    min_p: float,
) -> None:
    """Chi-square over seeds, of the first token; rare ones are counted together."""
    [ids] = prompts(5, 10)
    count = 400
    sampling = Sampling(True, temperature, top_p, top_k, 1.0, min_p=min_p)
    callers = [
        Caller(triton_server, llama, ids, options(1, sampling=sampling, seed=seed))
        for seed in range(count)
    ]
    for one in callers:
        one.end()
    seen = Counter(one.ids[0] for one in callers)
    chances = _chances(built.logits(ids)[-1], temperature, top_p, top_k, min_p)
    assert all(chances[token] > 0 for token in seen)
    common = [token for token in range(len(chances)) if chances[token] * count >= 5]
    expected = [chances[token] * count for token in common]
    observed = [seen[token] for token in common]
    if count - sum(expected) >= 5:
        expected.append(count - sum(expected))
        observed.append(count - sum(observed))
    assert len(expected) > 2
    square = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    # Mean and deviation of chi-square; five of them are never exceeded by right samples.
    free = len(expected) - 1
    assert square < free + 5 * (2 * free) ** 0.5


def test_a_min_p_of_1_leaves_the_likeliest_token(
    triton_server: TritonServer, built: Built, llama: str
) -> None:
    """openvino_genai itself takes less than 1 alone, and holds it in 32 bits."""
    [ids] = prompts(5, 10)
    for most in (1.0, 1 - 1e-9):
        sampling = Sampling(True, 1.3, 1.0, 0, 1.0, min_p=most)
        caller = Caller(triton_server, llama, ids, options(12, sampling=sampling, seed=3))
        assert caller.end() is Finish.LENGTH
        assert caller.ids == built.greedy(ids, 12)


def _chances(
    logits: torch.Tensor, temperature: float, top_p: float, top_k: int, min_p: float
) -> list[float]:
    """In the order of transformers' `generate`."""
    warpers: list[Any] = []
    if top_k:
        warpers.append(transformers.TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(transformers.TopPLogitsWarper(top_p))
    if min_p:
        warpers.append(transformers.MinPLogitsWarper(min_p))
    ids, scores = torch.zeros((1, 1), dtype=torch.int64), logits[None] / temperature
    for warper in warpers:
        scores = warper(ids, scores)
    return list(scores.softmax(-1)[0].tolist())


def test_what_is_refused_has_its_reason_and_harms_nobody(
    triton_server: TritonServer, built: Built, llama: str
) -> None:
    [ids] = prompts(6, 30)
    beside = Caller(triton_server, llama, ids, options(100))
    beyond = options().to_json().replace(b'"temperature": 1.0', b'"temperature": 1' + b"0" * 400)
    for bad, asked, said in (
        ([5, -1], options(), "INVALID_ARG: input 'input_ids' has an id below 0"),
        ([5, 10**6], options(), "the model's last"),
        ([5] * POSITIONS, options(), f"the model has {POSITIONS} positions"),
        ([5], b"{}", "'max_new_tokens' is missing"),
        ([5], beyond, "INVALID_ARG: options.sampling: field 'temperature' must be float"),
    ):
        wrong = Caller(triton_server, llama, bad, asked)
        with pytest.raises(InferenceServerException, match=said):
            wrong.end()
    assert beside.end() is Finish.LENGTH
    assert beside.ids == built.greedy(ids, 100)


def test_who_leaves_frees_the_cache(triton_server: TritonServer, built: Built) -> None:
    """Room for one: the second comes in when the first has gone."""
    name = serve(triton_server, built, num_kv_blocks="16")
    for _ in range(TRIES):
        first = Caller(triton_server, name, [1, 2, 3], options(POSITIONS - 3))
        assert first.first.wait(60)
        second = Caller(triton_server, name, [2, 2, 3], options(POSITIONS - 3))
        leaves_at = time.monotonic()
        first.leave()
        assert second.end() is Finish.LENGTH
        if first.end() is Finish.CANCELLED:
            break
    assert first.end() is Finish.CANCELLED
    assert len(first.ids) < POSITIONS - 3
    assert leaves_at < second.began_at
    until(triton_server, name, running=0, waiting=0, cancelled_total=1, cache_use=0)
    third = Caller(triton_server, name, [9] * 10, options(POSITIONS))
    with pytest.raises(InferenceServerException, match=f"the model has {POSITIONS} positions"):
        third.end()
    triton_server.client().unload_model(name)


@pytest.mark.parametrize("full", ["num_kv_blocks", "max_running"])
def test_a_health_check_waits_for_nobody(
    triton_server: TritonServer, built: Built, full: str
) -> None:
    """One sequence has the whole cache, or the only place, and another waits for it."""
    name = serve(triton_server, built, **{full: str({"num_kv_blocks": 16}.get(full, 1))})
    [ids] = prompts(10, 40)
    for _ in range(TRIES):
        long = Caller(triton_server, name, [1, 2, 3], options(POSITIONS - 3))
        assert long.first.wait(60)
        waits = Caller(triton_server, name, [2, 2, 3], options(POSITIONS - 3))
        check = Caller(triton_server, name, ids, options(8, first=True))
        assert check.end() is long.end() is waits.end() is Finish.LENGTH
        if check.ended_at < min(long.ended_at, waits.began_at):
            break
    assert check.ended_at < min(long.ended_at, waits.began_at)
    assert check.ids == built.greedy(ids, 8)
    assert long.ids == built.greedy([1, 2, 3], POSITIONS - 3)
    until(triton_server, name, running=0, waiting=0, failed_total=0, cache_use=0)
    triton_server.client().unload_model(name)


def test_a_farewell_may_come_before_what_it_ends(triton_server: TritonServer, built: Built) -> None:
    """They come on streams of their own."""
    name = serve(triton_server, built)
    part(triton_server, name, "late")
    late = Caller(triton_server, name, [1, 2, 3], options(POSITIONS - 3), identity="late")
    other = Caller(triton_server, name, [1, 2, 3], options(POSITIONS - 3), identity="other")
    assert other.end() is Finish.LENGTH
    until(triton_server, name, running=0, waiting=0, cancelled_total=1)
    assert len(late.ids) < len(other.ids)
    # One farewell ends one call: the id may come again.
    again = Caller(triton_server, name, [1, 2, 3], options(8), identity="late")
    assert again.end() is Finish.LENGTH
    late.leave()
    triton_server.client().unload_model(name)


def test_who_vanishes_without_a_word_is_noticed(triton_server: TritonServer, built: Built) -> None:
    name = serve(triton_server, built)
    for finished in range(TRIES):
        gone = Caller(triton_server, name, [1, 2, 3], options(POSITIONS - 3))
        assert gone.first.wait(60)
        gone.vanish()
        wait_until(lambda: ended(triton_server, name) > finished, 60)  # noqa: B023
        if figures(triton_server, name)["cancelled_total"]:
            break
    until(triton_server, name, running=0, waiting=0, cancelled_total=1, cache_use=0)
    triton_server.client().unload_model(name)


def test_loaded_again_it_writes_on_in_the_same_rows(tmp_path: Path, built: Built) -> None:
    """Two processes of one version at a time: Triton would free the rows with the first of them,
    and be damaged by the next figure, in the same second."""
    with running_triton(tmp_path / "t") as server:
        name = serve(server, built)
        for again in range(1, 4):
            assert Caller(server, name, [1, 2, 3], options(40)).end() is Finish.LENGTH
            until(server, name, running=0, finished_total=10 * again - 9)
            (server.repository / name / "config.pbtxt").touch()
            (server.repository / name / "1" / "openvino_model.xml").touch()
            client = server.client()
            client.load_model(name)
            wait_until(lambda: unloads(server, name) == again, 30)  # noqa: B023
            for at in range(9):
                assert Caller(server, name, [at], options(40)).end() is Finish.LENGTH
        until(server, name, running=0, waiting=0, finished_total=30, tokens_total=1200)
        server.client().unload_model(name)
        wait_until(lambda: unloads(server, name) == 4, 30)
        until(server, name, running=0, finished_total=30)


def test_what_a_killed_process_left_is_on_no_page_of_ours(tmp_path: Path, built: Built) -> None:
    """Triton has its last gauges for good: an alert would take them for a cache that is full."""
    with running_triton(tmp_path / "t") as server:
        name, process = held(server, built)
        page = MetricsPage(f"http://{server.addresses.metrics}/metrics")
        page.show([row("text", model=name, versions_loaded=(1,))], None, triton_ready=True)
        names = {"running", "waiting", "cache_use", "cache_reserved"}
        gauge = re.compile(rf"^transformer_serving_generation_({'|'.join(names)})\{{", re.M)
        assert set(gauge.findall(page.text())) == names
        process.kill()
        with pytest.raises(InferenceServerException, match="is not healthy"):
            Caller(server, name, [1], options(1)).end()
        server.client().unload_model(name)
        assert figures(server, name)["running"] == 1
        page.show([row("text", model=name, versions_loaded=())], None, triton_ready=True)
        assert gauge.findall(page.text()) == []
        assert f'transformer_serving_generation_tokens_total{{model="{name}"' in page.text()


def held(server: TritonServer, built: Built) -> tuple[str, psutil.Process]:
    """A model of which one text runs, by Triton's page too, and its process, which is stopped."""
    for _ in range(TRIES):
        # A new one: the page is told once a second at most, and at once of its first text.
        name = serve(server, built, num_kv_blocks="16")
        [process] = [one for one in stubs(server) if name in " ".join(one.cmdline())]
        caller = Caller(server, name, [1, 2, 3], options(POSITIONS - 3))
        wait_until(
            lambda: figures(server, name).get("running") or caller.ended_at < math.inf,  # noqa: B023
            60,
        )
        process.suspend()
        if figures(server, name)["running"]:
            return name, process
        process.resume()
        assert caller.end() is Finish.LENGTH
        server.client().unload_model(name)
    raise AssertionError(f"each of {TRIES} texts had ended before it was seen")


def ended(server: TritonServer, name: str) -> float:
    found = figures(server, name)
    return found.get("finished_total", 0) + found.get("cancelled_total", 0)


def unloads(server: TritonServer, name: str) -> int:
    return server.log.read_text().count(f"successfully unloaded '{name}'")


def test_a_hundred_streams_of_which_half_leave(
    triton_server: TritonServer, built: Built, llama: str
) -> None:
    before = figures(triton_server, llama)
    asked = prompts(8, *[3 + at % 40 for at in range(100)])
    # Who leaves has asked for more than would be there by then.
    callers = [
        Caller(triton_server, llama, ids, options(400 if at % 2 else 60))
        for at, ids in enumerate(asked)
    ]
    for at, one in enumerate(callers):
        if at % 2:
            one.first.wait(60)
            one.leave()
    for at, one in enumerate(callers):
        if at % 2 == 0:
            assert one.end() is Finish.LENGTH
            assert len(one.ids) == 60
            assert one.messages < 60
    for at in (0, 42, 98):
        assert callers[at].ids == built.greedy(asked[at], 60)
    until(triton_server, llama, running=0, waiting=0, cache_use=0, cache_reserved=0)
    after = figures(triton_server, llama)
    ended = after["finished_total"] + after["cancelled_total"]
    assert ended - before["finished_total"] - before["cancelled_total"] == 100
    assert after["cancelled_total"] > before["cancelled_total"]
    assert after["failed_total"] == 0


def test_no_other_format_is_read_by_the_name_of_openvinos_own(tmp_path: Path) -> None:
    write_onnx(tmp_path, file_name="openvino_model.xml")
    for name in ("openvino_model.bin", "config.json"):
        (tmp_path / name).touch()
    with pytest.raises(ModelError, match=r"'openvino_model.xml' .* is not OpenVINO's own format"):
        OpenVinoPipeline(tmp_path, GenerationSettings(vocabulary=9, max_positions=9, kv_blocks=1))


# In a process of its own: oneDNN reads its limit once.
OPENED = """
import itertools, sys
from pathlib import Path
from transformer_serving.contract.engine_parameters import KV_PRECISION
from transformer_serving.engine.backends.generation.pipeline import OpenVinoPipeline
from transformer_serving.engine.backends.generation.settings import GenerationSettings, caches_of

# bf16 with f32 is of bundles that were made where no processor has bf16.
pairs = [(name, kept) for name in ("fp32", "bf16", "int8") for kept in caches_of(name)]
for precision, kept in [*pairs, ("bf16", "f32")]:
    OpenVinoPipeline(Path(sys.argv[1]), GenerationSettings(9, 9, 1, precision, kept))
print(len(pairs))
"""


@pytest.mark.parametrize("limit", ["ALL", "AVX2"])
def test_a_cache_that_goes_with_its_precision_is_opened_on_every_processor(
    built: Built, limit: str
) -> None:
    folder = str(built.files.files[0].parent)
    done = subprocess.run(
        [sys.executable, "-c", OPENED, folder],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, LIMIT_VARIABLE: limit},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "9"


@pytest.mark.parametrize("kept", [True, False])
def test_the_prefix_cache_is_the_settings(kept: bool) -> None:
    """Of what is computed nothing else tells: the answers are the same."""
    settings = GenerationSettings(100, 64, 8, prefix_cache=kept)
    assert _scheduler(settings).enable_prefix_caching is kept


def test_a_prompt_that_came_before_is_answered_the_same(
    triton_server: TritonServer, built: Built
) -> None:
    name = serve(triton_server, built, prefix_cache="on")
    [ids] = prompts(9, 200)
    for _ in range(3):
        caller = Caller(triton_server, name, ids, options(10))
        caller.end()
        assert caller.ids == built.greedy(ids, 10)
    triton_server.client().unload_model(name)


def test_a_model_that_cannot_be_loaded_says_why(triton_server: TritonServer, built: Built) -> None:
    with pytest.raises(InferenceServerException, match="'num_kv_blocks' must be a whole number"):
        serve(triton_server, built, num_kv_blocks="many")
    name = f"llama{next(_numbers)}"
    folder = triton_server.repository / name / "1"
    folder.mkdir(parents=True)
    text = config_text(endpoint_of(built.source, LIMITS), built.files)
    (folder.parent / "config.pbtxt").write_text(text)
    with pytest.raises(InferenceServerException, match=r"'openvino_model\.xml' is missing"):
        triton_server.client().load_model(name)


def test_unloading_lets_a_stream_come_to_its_end(triton_server: TritonServer, built: Built) -> None:
    name = serve(triton_server, built)
    caller = Caller(triton_server, name, [1, 2, 3], options(400))
    assert caller.first.wait(20)
    triton_server.client().unload_model(name)
    assert caller.end() is Finish.LENGTH
    assert len(caller.ids) == 400
    until(triton_server, name, running=0, waiting=0, cache_use=0, finished_total=1)
