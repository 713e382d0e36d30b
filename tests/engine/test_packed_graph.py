"""Programs without padding answer as with it; and those that cannot be packed are told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.families import save_model
from transformer_serving.contract.endpoint import OutputTensor
from transformer_serving.desk.export.program import Traceable, export_program, write_program
from transformer_serving.desk.source.model import open_source
from transformer_serving.engine.backends.exported_program import (
    Call,
    LoadedProgram,
    Outputs,
    load_program,
)
from transformer_serving.engine.backends.grouping import MASK
from transformer_serving.engine.backends.packed import calls as packed_calls
from transformer_serving.engine.backends.packed.calls import (
    FAR,
    PackedCalls,
    computed,
    distance,
    of_row,
    open_packed,
)
from transformer_serving.engine.backends.packed.graph import PackedGraph, Unpackable, pack
from transformer_serving.engine.backends.packed.operators import of_text, text_by_text
from transformer_serving.engine.backends.packed.texts import Row
from transformer_serving.engine.backends.torch_runtime import CpuCalls

# Of each: what gives a vector of a text, and what one of each token; positions that are counted,
# that come from the ids, and beside them those of token types.
PACKED = [
    ("bert", "Model", "sentence-embedding", {"pooling": "mean"}),
    ("bert", "ForQuestionAnswering", "question-answering", {}),
    ("distilbert", "ForSequenceClassification", "text-classification", {}),
    ("xlm-roberta", "ForTokenClassification", "token-classification", {}),
    ("albert", "ForQuestionAnswering", "question-answering", {}),
]
BY_HAND = [
    ("bert", "ForSequenceClassification", "text-classification", {}),
    ("bert", "Model", "feature-extraction", {}),
    ("bert", "Model", "sentence-embedding", {"pooling": "cls"}),
    ("bert", "Model", "sentence-embedding", {"pooling": "lasttoken"}),
    ("roberta", "ForQuestionAnswering", "question-answering", {}),
    ("electra", "ForTokenClassification", "token-classification", {}),
]
UNPACKABLE = [
    ("bert", "ForMaskedLM", "fill-mask", "an input that is not of tokens"),
    ("modernbert", "ForSequenceClassification", "text-classification", "across a text's tokens"),
    ("mpnet", "Model", "sentence-embedding", "writes into values"),
    ("qwen3", "Model", "sentence-embedding", "across a text's tokens"),
]
LONGEST = 60
LENGTHS = np.array([1, 2, 7, 16, 33, LONGEST - 4])


@dataclass(frozen=True)
class Opened:
    loaded: LoadedProgram
    graph: PackedGraph
    packed: PackedCalls
    padded: CpuCalls


def rows_on_cpu(graph: PackedGraph) -> Callable[[Sequence[Row]], list[Outputs]]:
    def run(rows: Sequence[Row]) -> list[Outputs]:
        with torch.inference_mode():
            found = [computed(graph, row, torch.from_numpy(row.numbers)) for row in rows]
        return [
            [tensor.numpy() for tensor in of_row(graph, row, outputs)]
            for row, outputs in zip(rows, found, strict=True)
        ]

    return run


class NeverPadded:
    def run(self, calls: Sequence[Call]) -> list[Outputs | Exception]:
        raise AssertionError("these calls were to be packed")


def opened(path: Path) -> Opened:
    loaded = load_program(path)
    graph = pack(loaded, text_by_text)
    mask = [tensor.name for tensor in loaded.program.inputs].index(MASK)
    calls = PackedCalls(mask, graph.indices, graph.per_text, rows_on_cpu(graph), NeverPadded())
    return Opened(loaded, graph, calls, CpuCalls(loaded))


def exported(folder: Path, family: str, head: str, task: str, **changes: Any) -> Path:
    model = save_model(family, folder / "model", head, **changes)
    return export_program(open_source(str(model), task=task), "fp32", folder)


def _id(row: tuple[object, ...]) -> str:
    return "-".join(map(str, row[:3]))


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param(row, id=_id(row)) for row in PACKED),
        *(
            pytest.param(row, id=_id(row), marks=(pytest.mark.long, pytest.mark.by_hand))
            for row in BY_HAND
        ),
    ],
)
def one(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    family, head, task, changes = request.param
    return opened(exported(tmp_path_factory.mktemp("program"), family, head, task, **changes))


def call_of(loaded: LoadedProgram, lengths: Sequence[int], padding: int, seed: int) -> Call:
    there = np.arange(max(lengths) + padding) < np.array(lengths)[:, None]
    source = np.random.default_rng(seed)
    return [
        np.asarray(
            there * (1 if tensor.name == MASK else source.integers(0, limit, there.shape)), np.int32
        )
        for tensor in loaded.program.inputs
        for limit in [loaded.id_limits.get(tensor.name, 1)]
    ]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    calls=st.lists(
        st.tuples(
            st.lists(st.integers(1, LONGEST - 4), min_size=1, max_size=9), st.integers(0, 4)
        ),
        min_size=1, max_size=4,
    ),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_texts_of_all_lengths_are_answered_as_with_padding(
    one: Opened, calls: list[tuple[list[int], int]], seed: int
) -> None:
    given_calls = [
        call_of(one.loaded, lengths, padding, seed + at)
        for at, (lengths, padding) in enumerate(calls)
    ]
    mask = [tensor.name for tensor in one.loaded.program.inputs].index(MASK)
    for call, found, wanted in zip(
        given_calls, one.packed.run(given_calls), one.padded.run(given_calls), strict=True
    ):
        assert not isinstance(found, Exception)
        assert not isinstance(wanted, Exception)
        for mine, theirs, per_text in zip(found, wanted, one.graph.per_text, strict=True):
            assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
            kept = np.ones(len(theirs), bool) if per_text else call[mask].astype(bool)
            np.testing.assert_allclose(mine[kept], theirs[kept], atol=2e-5, rtol=1e-4)
            assert per_text or not mine[~kept].any()


def test_what_is_asked_of_a_packed_graph_before_it_serves_finds_no_difference(one: Opened) -> None:
    assert distance(one.packed, one.padded, one.loaded, LENGTHS) < 1e-5


def test_and_finds_one_where_texts_are_mixed_up(one: Opened) -> None:
    def over_all(query, key, value, cumulative, longest, scale):  # type: ignore[no-untyped-def]
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scale)

    graph = pack(one.loaded, over_all)
    mask = [tensor.name for tensor in one.loaded.program.inputs].index(MASK)
    mixed = PackedCalls(mask, graph.indices, graph.per_text, rows_on_cpu(graph), one.padded)
    assert distance(mixed, one.padded, one.loaded, LENGTHS) > FAR["bf16"]


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=_id(row), marks=() if at == 0 else (pytest.mark.long,))
        for at, row in enumerate(UNPACKABLE)
    ],
)
def test_what_looks_across_tokens_in_another_way_is_not_packed(
    tmp_path: Path, row: tuple[str, str, str, str]
) -> None:
    family, head, task, said = row
    loaded = load_program(exported(tmp_path, family, head, task))
    with pytest.raises(Unpackable, match=said):
        pack(loaded, text_by_text)


class Attends(torch.nn.Module):
    """One head of attention with a mask, and one vector of the text's tokens."""

    places: ClassVar = {
        "first by mask": lambda there: there.argmax(1),
        "last by mask": lambda there: there.sum(1) - 1,
        "middle by mask": lambda there: there.sum(1) // 2,
    }

    def __init__(self, mask: Callable[[torch.Tensor], torch.Tensor], mean: str = "masked") -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(50, 16, generator=torch.Generator()))
        self.mask, self.mean = mask, mean

    def forward(self, ids: torch.Tensor, there: torch.Tensor) -> tuple[torch.Tensor, ...]:
        attend = torch.nn.functional.scaled_dot_product_attention
        hidden = torch.nn.functional.embedding(ids, self.table)[:, None]
        hidden = attend(hidden, hidden, hidden, self.mask(there))[:, 0]
        if self.mean == "last":
            return (hidden[:, -1],)
        if self.mean in self.places:
            place = self.places[self.mean](there)[:, None, None].expand(-1, 1, 16)
            return (hidden.gather(1, place)[:, 0],)
        if self.mean == "masked":
            hidden = hidden * there[:, :, None].float()
        return (hidden.mean(1) if self.mean == "all" else hidden.sum(1),)


def padding_alone(there: torch.Tensor) -> torch.Tensor:
    return there.bool()[:, None, None, :]


def backwards(there: torch.Tensor) -> torch.Tensor:
    places = torch.arange(there.shape[1])
    return padding_alone(there) & (places[None, :] <= places[:, None])[None, None]


def neighbours(there: torch.Tensor) -> torch.Tensor:
    places = torch.arange(there.shape[1])
    near = (places[None, :] - places[:, None]).abs() < 1000
    return padding_alone(there) & near[None, None]


def weighed(there: torch.Tensor) -> torch.Tensor:
    places = torch.arange(there.shape[1])
    blocked = (1 - there.float())[:, None, None, :] * -1e9
    return blocked - 0.1 * (places[None, :] - places[:, None]).abs()[None, None]


def added(there: torch.Tensor) -> torch.Tensor:
    return ((1 - there.float()) * -1e9)[:, None, None, :]


def attending(folder: Path, module: torch.nn.Module) -> LoadedProgram:
    ids = torch.arange(10, dtype=torch.int32).reshape(2, 5)
    names = ("input_ids", MASK)
    example = (ids, torch.ones_like(ids))
    outputs = (OutputTensor("output", "FP32", (16,)),)
    traceable = Traceable(module.eval(), names, example, outputs, "fp32", "test")
    return load_program(write_program(traceable, folder))


@pytest.mark.parametrize(
    ("mask", "mean"),
    [
        (padding_alone, "masked"),
        (added, "masked"),
        (padding_alone, "first by mask"),
        (padding_alone, "last by mask"),
    ],
)
def test_attention_to_all_of_a_text_is_packed(
    tmp_path: Path, mask: Callable[[torch.Tensor], torch.Tensor], mean: str
) -> None:
    loaded = attending(tmp_path, Attends(mask, mean))
    graph = pack(loaded, text_by_text)
    calls = PackedCalls(1, graph.indices, graph.per_text, rows_on_cpu(graph), NeverPadded())
    assert distance(calls, CpuCalls(loaded), loaded, np.array([1, 2, 300])) < 1e-5


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (backwards, "some tokens of a text only"),
        (neighbours, "some tokens of a text only"),
        (weighed, "more than padding"),
    ],
)
def test_attention_to_part_of_a_text_is_not(
    tmp_path: Path, mask: Callable[[torch.Tensor], torch.Tensor], said: str
) -> None:
    loaded = attending(tmp_path, Attends(mask))
    with pytest.raises(Unpackable, match=said):
        pack(loaded, text_by_text)


@pytest.mark.parametrize("mean", ["last", "all", "sum", "middle by mask"])
def test_a_vector_that_padding_has_a_part_in_is_not(tmp_path: Path, mean: str) -> None:
    with pytest.raises(Unpackable, match="across a text's tokens"):
        pack(attending(tmp_path, Attends(padding_alone, mean)), text_by_text)


class Writes(Attends):
    """Sets what it has computed, or the mask it attends by, in place."""

    def __init__(self, what: str) -> None:
        super().__init__(padding_alone)
        self.what = what

    def forward(self, ids: torch.Tensor, there: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = torch.nn.functional.embedding(ids, self.table)[:, None].clone()
        seen = there.bool()[:, None, None, :] & there.bool()[:, None, :, None]
        if self.what == "mask":
            seen[:, :, :, :] = seen & backwards(there)
        else:
            hidden[:, :, 0] = 0.0
        hidden = torch.nn.functional.scaled_dot_product_attention(hidden, hidden, hidden, seen)
        return ((hidden[:, 0] * there[:, :, None].float()).sum(1),)


@pytest.mark.parametrize("what", ["mask", "values"])
def test_what_writes_into_its_values_is_not(tmp_path: Path, what: str) -> None:
    with pytest.raises(Unpackable, match="writes into values"):
        pack(attending(tmp_path, Writes(what)), text_by_text)


class Looks(torch.nn.Module):
    """A sum over a text, of which tables that are looked up by places are a part."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(50, 16, generator=torch.Generator()))
        self.places = torch.nn.Parameter(torch.randn(40, 16, generator=torch.Generator()))
        self.what = what

    def forward(self, ids: torch.Tensor, there: torch.Tensor) -> tuple[torch.Tensor, ...]:
        look = torch.nn.functional.embedding
        hidden = look(ids, self.table)
        if self.what == "some rows":
            hidden = hidden + look(torch.arange(4), self.places).sum(0)
        else:
            hidden = hidden + look(torch.arange(ids.shape[1])[None], self.places)
        mask = there[:, :, None].float()
        if self.what == "labels first":
            return ((hidden * mask).transpose(1, 2),)
        return ((hidden * mask).sum(1) / there.sum(1, keepdim=True),)


@pytest.mark.parametrize("what", ["places", "some rows"])
def test_tables_are_looked_up_by_a_texts_own_places(tmp_path: Path, what: str) -> None:
    loaded = attending(tmp_path, Looks(what))
    graph = pack(loaded, text_by_text)
    assert graph.places == (40 if what == "places" else 0)
    calls = PackedCalls(1, graph.indices, graph.per_text, rows_on_cpu(graph), NeverPadded())
    assert distance(calls, CpuCalls(loaded), loaded, np.array([1, 2, 5, 40])) < 1e-5


def test_a_text_that_is_too_long_is_refused_alone(tmp_path: Path) -> None:
    graph = pack(attending(tmp_path, Looks("places")), text_by_text)
    calls = PackedCalls(1, graph.indices, graph.per_text, rows_on_cpu(graph), NeverPadded())
    good, long = ([np.ones((1, tokens), np.int32)] * 2 for tokens in (5, 41))
    first, refused, second = calls.run([good, long, good])
    assert isinstance(refused, IndexError)
    assert str(refused) == "a text has 41 tokens, and the model 40 places"
    assert isinstance(first, list)
    assert isinstance(second, list)
    np.testing.assert_array_equal(first[0], second[0])


def test_outputs_that_do_not_begin_with_texts_and_tokens_are_not_packed(tmp_path: Path) -> None:
    with pytest.raises(Unpackable, match="across a text's tokens"):
        pack(attending(tmp_path, Looks("labels first")), text_by_text)


def test_a_value_that_is_not_finite_stays_in_its_text() -> None:
    tokens = torch.ones(1, 6, 2)
    tokens[0, 1, 0] = torch.inf
    tokens[0, 5] = torch.nan
    owners, cumulative = torch.tensor([0, 0, 1, 1, 1, 3]), torch.tensor([0, 2, 5, 5])
    summed = of_text(tokens, owners, cumulative)
    assert summed[0].isnan().all()
    assert summed[1:].tolist() == [[3.0, 3.0], [0.0, 0.0]]


def test_whole_numbers_are_summed_as_torch_sums_them() -> None:
    owners, cumulative = torch.tensor([0, 0, 1]), torch.tensor([0, 2, 3])
    for one in (torch.ones(1, 3, dtype=torch.int32), torch.ones(1, 3, dtype=torch.bool)):
        summed = of_text(one, owners, cumulative)
        assert summed.dtype == one.sum(1).dtype == torch.int64
        assert summed.tolist() == [2, 1]


def test_fp32_stays_padded_and_says_why(one: Opened) -> None:
    calls, reason = open_packed(Path("nowhere"), one.loaded, None, one.padded)  # type: ignore[arg-type]
    assert calls is None
    assert "bf16 and fp16 alone" in reason


class RowsOnCpu:
    """In the place of a GPU's."""

    def __init__(self, graph: PackedGraph, gpu: object) -> None:
        self._run = rows_on_cpu(graph)

    def __call__(self, rows: Sequence[Row]) -> list[Outputs]:
        return self._run(rows)


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of bf16; its positions come from the ids, and so from one on the processor."""
    folder = tmp_path_factory.mktemp("lowered")
    model = save_model("roberta", folder / "model", "ForQuestionAnswering")
    source = open_source(str(model), task="question-answering")
    return export_program(source, "bf16", folder)


@pytest.mark.parametrize("attention", ["right", "mixed up", "not a number", "broken"])
def test_what_a_gpu_loads_is_asked_before_it_serves(
    lowered: Path, monkeypatch: pytest.MonkeyPatch, attention: str
) -> None:
    def wrong(query, key, value, cumulative, longest, scale):  # type: ignore[no-untyped-def]
        if attention == "broken":
            raise ValueError("no such kernel")
        if attention == "not a number":
            return value * torch.nan
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scale)

    monkeypatch.setattr(packed_calls, "GpuRows", RowsOnCpu)
    monkeypatch.setattr(packed_calls, "varlen", text_by_text if attention == "right" else wrong)
    loaded = load_program(lowered)
    calls, reason = open_packed(lowered, loaded, None, CpuCalls(loaded))  # type: ignore[arg-type]
    if attention == "right":
        assert isinstance(calls, PackedCalls), reason
        assert reason == ""
        return
    assert calls is None
    said = {"mixed up": "from those with it", "not a number": "are nan from"}
    assert said.get(attention, "ValueError: no such kernel") in reason
