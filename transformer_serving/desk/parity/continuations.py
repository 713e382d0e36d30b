"""Whether a language model's engine writes what transformers' own `generate` writes.

Compared are tokens, one prompt at a time and all together, over prompts of many lengths, one of
them longer than the model's sliding window if it has one, with a stop token and with a repetition
penalty.

Tested by tests/test_language_model.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from preprocess.generation.prompt import text_of
from transformer_serving.desk.export.language_model import load_language_model
from transformer_serving.desk.export.onnx import quiet
from transformer_serving.desk.failure import ConversionRefused
from transformer_serving.desk.parity.check import WorstCase
from transformer_serving.desk.parity.texts import parity_texts
from transformer_serving.desk.source.language_model import LanguageModelSource
from transformer_serving.engine.proof.greedy import Generate, GreedyProof, prove_greedy
from transformer_serving.engine.proof.greedy_set import GreedyRow, GreedySet, GreedyTolerance

REFERENCE = "transformers.generate"
_NEW = 24
# Around the cache's blocks of 32 tokens, and past the 256 that one step computes.
_LENGTHS = (1, 2, 7, 31, 32, 33, 65, 130, 300)
_PAST_WINDOW = 19
_LONGEST = 1024
_PENALTY = 1.3
# A bundle carries those of at most so many tokens: the controller asks them at every new machine.
_KEPT_TOKENS = 400

# From the safest; in parts of the scores' spread. docs/decisions/language-models.md has what was
# measured.
TOLERANCES = {
    "fp32": GreedyTolerance(equal=0.995, margin=1e-3, difference=1e-3),
    "bf16": GreedyTolerance(equal=0.95, margin=0.1, difference=0.1),
    # Nothing was measured with it; it rounds less than bf16.
    "fp16": GreedyTolerance(equal=0.95, margin=0.1, difference=0.1),
    "int8": GreedyTolerance(equal=0.9, margin=0.25, difference=0.25),
}


@dataclass(frozen=True)
class ContinuationReport:
    """`equal_tokens` of `tokens` are the reference's after the same tokens before.

    `largest_difference` is of a log-probability, in parts of the scores' spread.
    """

    reference: str
    precision: str
    prompts: int
    longest_tokens: int
    tokens: int
    equal_tokens: int
    largest_difference: float
    tolerance: float
    worst: WorstCase
    fault: str | None


@dataclass(frozen=True)
class Continuations:
    """What every precision is asked; the set's precision and tolerance are the engine's to give."""

    rows: tuple[GreedyRow, ...]
    spread: float

    def asked_of(self, precision: str) -> GreedySet:
        return GreedySet(REFERENCE, precision, TOLERANCES[precision], self.spread, self.rows)

    def margin_of(self, precision: str) -> float:
        """Within which an engine of it may take another token, in scores."""
        return TOLERANCES[precision].margin * self.spread

    def kept(self, precision: str) -> GreedySet:
        """What the bundle carries; the shortest prompt where all are long."""
        shortest = min(len(row.prompt) for row in self.rows)
        most = max(_KEPT_TOKENS, shortest)
        rows = tuple(row for row in self.rows if len(row.prompt) <= most)
        return GreedySet(REFERENCE, precision, TOLERANCES[precision], self.spread, rows)


class Reference:
    """transformers' model in float32, with nothing of its own generation_config left."""

    def __init__(self, source: LanguageModelSource) -> None:
        from transformers import GenerationConfig

        with quiet():
            self._model = load_language_model(source)
        self._model.generation_config = GenerationConfig()
        self.spreads: list[float] = []

    def row(
        self, prompt: Sequence[int], new: int, eos_ids: Sequence[int] = (), penalty: float = 1.0,
        least: int = 0,
    ) -> GreedyRow:  # fmt: skip
        """The greedy continuation of `prompt` by at most `new` tokens, without an end before
        `least` of them."""
        import torch
        from transformers import GenerationConfig

        config = GenerationConfig(
            max_new_tokens=new,
            min_new_tokens=least or None,
            do_sample=False,
            eos_token_id=list(eos_ids) or None,
            pad_token_id=0,
            repetition_penalty=penalty,
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
        )
        ids = torch.tensor([list(prompt)])
        with quiet(), torch.inference_mode():
            found: Any = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=config
            )
        tokens = found.sequences[0, len(prompt) :]
        raw = torch.cat(found.logits).float()
        best = torch.cat(found.scores).float().topk(2, dim=-1).values
        chosen = raw.log_softmax(dim=-1).gather(1, tokens[:, None])[:, 0]
        self.spreads.append(float(raw.std(dim=-1).mean()))
        return GreedyRow(
            prompt=tuple(prompt),
            continuation=tuple(tokens.tolist()),
            logprobs=tuple(round(value, 6) for value in chosen.tolist()),
            margins=tuple(round(value, 6) for value in (best[:, 0] - best[:, 1]).tolist()),
            eos_ids=tuple(eos_ids),
            repetition_penalty=penalty,
        )


def prepare_continuations(
    source: LanguageModelSource, reference: Reference, *, as_texts: bool = False
) -> Continuations:
    """The prompts and what the reference writes; `as_texts` for an engine that takes no ids.

    Raises ConversionRefused where the reference cannot.
    """
    new = min(_NEW, max(1, source.generation.max_positions // 4))
    tokenizer = source.tokenizer.library()
    prompts = _prompts(source, tokenizer, new)
    if as_texts:
        prompts = _with_texts(prompts, tokenizer, source.generation.max_positions - new)
    try:
        plain = [reference.row(prompt, new) for prompt in prompts]
        middle = sorted(prompts, key=len)[len(prompts) // 2]
        penalized = [reference.row(prompt, new, (), _PENALTY) for prompt in (prompts[0], middle)]
        stopped = [
            reference.row(row.prompt, new, (_stop_of(row.continuation),))
            for row in (plain[len(plain) // 2], plain[-1])
        ]
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise ConversionRefused(
            f"{REFERENCE} itself cannot continue a text with this model ({type(error).__name__}); "
            "the files may not belong together, such as a tokenizer with more pieces than the "
            f"model's {source.generation.vocabulary}"
        ) from error
    rows = (*plain, *penalized, *stopped)
    if as_texts:
        rows = tuple(_in_texts(row, tokenizer) for row in rows)
    spread = sum(reference.spreads) / len(reference.spreads)
    return Continuations(rows, max(spread, 1e-6))


def _with_texts(
    prompts: Sequence[tuple[int, ...]], tokenizer: Any, most: int
) -> list[tuple[int, ...]]:
    """What the tokenizer makes of each prompt's text, special tokens around it included."""
    found = {tuple(tokenizer.encode(tokenizer.decode(ids)).ids): None for ids in prompts}
    texts = [ids for ids in found if len(ids) <= most and _text_of(ids, tokenizer) is not None]
    if not texts:
        raise ConversionRefused(
            "the tokenizer makes other tokens of the text that it decodes, so that no prompt can "
            "be told to vLLM, which takes texts; convert with --engine openvino"
        )
    return texts


def _in_texts(row: GreedyRow, tokenizer: Any) -> GreedyRow:
    whole = (*row.prompt, *row.continuation)
    ends = range(len(row.prompt), len(whole))
    return replace(row, texts=tuple(_text_of(whole[:end], tokenizer) for end in ends))


def _text_of(ids: Sequence[int], tokenizer: Any) -> str | None:
    return text_of(ids, tokenizer, lambda text: tokenizer.encode(text).ids)


def _prompts(source: LanguageModelSource, tokenizer: Any, new: int) -> list[tuple[int, ...]]:
    most = source.generation.max_positions - new
    lengths = {size for size in (*_LENGTHS, min(most, _LONGEST)) if size <= most}
    if source.window is not None and source.window + _PAST_WINDOW <= most:
        lengths.add(source.window + _PAST_WINDOW)
    ids: list[int] = []
    for text in reversed(parity_texts(lambda text: len(tokenizer.encode(text).ids), max(lengths))):
        ids += tokenizer.encode(text).ids
        if len(ids) >= max(lengths) + len(lengths):
            break
    # Each begins elsewhere, so that no two have the same tokens before them.
    return [tuple(ids[at : at + size]) for at, size in enumerate(sorted(lengths))]


def _stop_of(continuation: Sequence[int]) -> int:
    """A token that did not come before it, as late as in the middle where there is one."""
    half = len(continuation) // 2
    fresh = [at for at, one in enumerate(continuation) if one not in continuation[:at]]
    return continuation[next((at for at in fresh if at >= half), fresh[-1])]


def compare_continuations(
    case: Continuations, precision: str, engine: Generate
) -> ContinuationReport:
    """The engine's tokens against the reference's; no refusal."""
    return _report(case, precision, prove_greedy(case.asked_of(precision), engine))


def _report(case: Continuations, precision: str, found: GreedyProof) -> ContinuationReport:
    worst = max(found.proof.findings, key=lambda one: (one.fault is not None, one.difference))
    return ContinuationReport(
        reference=REFERENCE,
        precision=precision,
        prompts=len(case.rows),
        longest_tokens=max(len(row.prompt) for row in case.rows),
        tokens=found.tokens,
        equal_tokens=found.equal,
        largest_difference=found.proof.largest_difference,
        tolerance=TOLERANCES[precision].difference,
        worst=WorstCase(found.proof.findings.index(worst), worst.length, worst.batch),
        fault=found.proof.fault,
    )
