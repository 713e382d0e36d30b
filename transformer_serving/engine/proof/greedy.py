"""Asking a language model's engine a greedy set, each prompt alone and all of them together.

An engine whose token is another one than the reference's goes on with the reference's: what comes
after it is compared all the same, and one near choice does not cost the rest of its row.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transformer_serving.contract.error_line import named_line
from transformer_serving.contract.generation import Finish, Options, Sampling
from transformer_serving.engine.proof.greedy_set import GreedyRow, GreedySet
from transformer_serving.engine.proof.verdict import Finding, Proof

# A row is asked again so often at most: an engine that is wrong everywhere shows before.
_MOST_ROUNDS = 64


@dataclass(frozen=True)
class Asked:
    """A prompt and how it is to go on; `text` has its ids, for an engine that takes none."""

    prompt: tuple[int, ...]
    options: Options
    text: str | None = None


@dataclass(frozen=True)
class Continued:
    """What the engine went on with; as many log-probabilities as ids."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish


# All of the calls at one time. What it raises is a fault of all of them.
Generate = Callable[[Sequence[Asked]], Sequence[Continued]]


@dataclass(frozen=True)
class GreedyProof:
    """`equal` of `tokens` were the reference's; `proof` is what the controller keeps."""

    proof: Proof
    tokens: int
    equal: int


@dataclass
class _Followed:
    """How far one row is: `at` tokens of its continuation are behind."""

    row: GreedyRow
    at: int = 0
    equal: int = 0
    passed_over: int = 0
    difference: float = 0.0
    widest: float = 0.0
    fault: str | None = None

    @property
    def ended(self) -> bool:
        return self.fault is not None or self.at >= len(self.row.continuation)

    def asked(self) -> Asked:
        prompt = (*self.row.prompt, *self.row.continuation[: self.at])
        sampling = Sampling(False, 1.0, 1.0, 0, self.row.repetition_penalty)
        new = len(self.row.continuation) - self.at
        options = Options(new, self.row.eos_ids, sampling, 0, logprobs=True)
        return Asked(prompt, options, self.row.texts[self.at] if self.row.texts else None)

    def _pass_over(self) -> None:
        """Go on where a text has the tokens so far; what lies before it nobody is asked."""
        texts = self.row.texts
        while texts and self.at < len(texts) and texts[self.at] is None:
            self.at += 1
            self.passed_over += 1

    def take(self, got: Continued) -> None:
        """Compare up to the first token that is another one, and past it."""
        wanted = self.row.continuation[self.at :]
        if not got.ids or len(got.ids) != len(got.logprobs):
            self.fault = "no tokens, or not as many log-probabilities"
            return
        for mine, theirs, logprob in zip(got.ids, wanted, got.logprobs, strict=False):
            if mine != theirs:
                self.widest = max(self.widest, self.row.margins[self.at])
                self.at += 1
                self._pass_over()
                return
            self._measure(logprob)
            self.at += 1
            self.equal += 1
        self._check_end(got, len(wanted))

    def _measure(self, logprob: float) -> None:
        """Of vLLM, which takes texts, older versions tell log-probabilities after the penalty."""
        if self.row.texts and self.row.repetition_penalty != 1.0:
            return
        far = abs(logprob - self.row.logprobs[self.at])
        self.difference = max(self.difference, far if math.isfinite(far) else math.inf)

    def _check_end(self, got: Continued, wanted: int) -> None:
        if len(got.ids) != wanted:
            self.fault = f"{len(got.ids)} tokens where {wanted} were to come"
            return
        stops = self.row.continuation[-1] in self.row.eos_ids
        if got.finish is not (Finish.STOP if stops else Finish.LENGTH):
            self.fault = f"its end is called {got.finish.name}"


def prove_greedy(found: GreedySet, generate: Generate) -> GreedyProof:
    """Ask and compare. An engine that raises is a finding, and no exception."""
    began = time.monotonic()
    findings: list[Finding] = []
    tokens = equal = 0
    for batch in (*((row,) for row in found.rows), found.rows):
        followed = _follow(batch, generate)
        findings += [_finding(found, one, len(batch)) for one in followed]
        tokens += sum(one.at - one.passed_over for one in followed)
        equal += sum(one.equal for one in followed)
    worst = max(findings, key=lambda one: (one.fault is not None, one.difference))
    proof = Proof(
        tuple(findings),
        time.monotonic() - began,
        max(one.difference for one in findings),
        None,
        _fault(found, worst, tokens, equal),
    )
    return GreedyProof(proof, tokens, equal)


def _follow(rows: Sequence[GreedyRow], generate: Generate) -> list[_Followed]:
    followed = [_Followed(row) for row in rows]
    for _ in range(_MOST_ROUNDS):
        open_ones = [one for one in followed if not one.ended]
        if not open_ones:
            break
        try:
            answers = generate([one.asked() for one in open_ones])
        except Exception as error:
            # Whatever an engine raises: the other prompts are still to be asked.
            for one in open_ones:
                one.fault = f"the engine failed ({named_line(error)})"
            break
        for one, got in zip(open_ones, answers, strict=True):
            one.take(got)
    return followed


def _finding(found: GreedySet, one: _Followed, batch: int) -> Finding:
    """Differences are in parts of the spread."""
    difference, widest = one.difference / found.spread, one.widest / found.spread
    fault = one.fault
    if fault is None and widest > found.tolerance.margin:
        fault = (
            f"another token where the best was {widest:.2g} of the spread above the next, and "
            f"{found.tolerance.margin:g} is allowed"
        )
    if fault is None and not difference <= found.tolerance.difference:
        fault = (
            f"log-probabilities differ by {difference:.2g} of the spread where "
            f"{found.tolerance.difference:g} is allowed"
        )
    return Finding(len(one.row.prompt), batch, difference, None, fault)


def _fault(found: GreedySet, worst: Finding, tokens: int, equal: int) -> str | None:
    if worst.fault is not None:
        beside = "alone" if worst.batch == 1 else f"beside {worst.batch - 1} others"
        return f"a prompt of {worst.length} tokens {beside}: {worst.fault}"
    if tokens and equal / tokens < found.tolerance.equal:
        return (
            f"{equal / tokens:.1%} of the tokens are the reference's, and "
            f"{found.tolerance.equal:.1%} must be"
        )
    return None
