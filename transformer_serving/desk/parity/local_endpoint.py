"""A built engine as an endpoint of this process: the product's own way from body to answer.

For parity and goldens. Bodies are read, encoded, padded, cut and rendered by preprocess itself, so
what is compared with the reference is what a caller will get; only Triton is left out.

Tested by tests/parity/test_check.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from preprocess.answers import TASKS
from preprocess.answers.work import Work
from preprocess.request import read_body
from preprocess.rows import Row, pad, rows_of
from preprocess.tokens import Encoded
from transformer_serving.contract.endpoint import Endpoint, Tokens
from transformer_serving.contract.errors import ServingError
from transformer_serving.desk.export.endpoint_json import TASKS_CUT_BY_TOKENIZER
from transformer_serving.desk.failure import ConversionRefused

if TYPE_CHECKING:
    from transformer_serving.desk.builders.files import Call


class LocalEndpoint:
    """An endpoint over `call`, the engine; it has no limits of time and no queue."""

    def __init__(self, endpoint: Endpoint, tokenizer_json: bytes, call: Call) -> None:
        self.endpoint = endpoint
        self._task = TASKS[endpoint.task](endpoint)
        self._tokenizer = self._task.tokenizer(tokenizer_json, endpoint.tokens)
        self._call = call

    def work(self, body: Any) -> Work:
        """A body's rows for the engine. Raises ServingError as the endpoint would."""
        request = read_body(body, self._task, self.endpoint.limits)
        return self._task.encode(request, self._tokenizer)

    def run(self, encoded: Sequence[Encoded]) -> list[Row]:
        """One engine call, padded to the smallest bucket that holds them all."""
        length = self._length(encoded)
        outputs = self._call(pad(encoded, length, self.endpoint.inputs, self.endpoint.tokens))
        return rows_of(outputs, encoded, self.endpoint)

    def holds(self, encoded: Sequence[Encoded]) -> bool:
        """Whether the endpoint would ask its engine for all of them in one call; of one that is
        longer than a call it does."""
        limits, count = self.endpoint.limits, len(encoded)
        most = limits.max_call_tokens
        fits = most is None or count * self._length(encoded) <= most
        return count == 1 or (count <= limits.max_batch_size and fits)

    def _length(self, encoded: Sequence[Encoded]) -> int:
        longest = max(len(text.ids) for text in encoded)
        return next(size for size in self.endpoint.tokens.buckets if size >= longest)

    def render(self, rows: Sequence[Row], work: Work) -> Any:
        """The answer to the work's body as plain JSON values."""
        return _plain(self._task.render(rows, work))

    def answer(self, body: Any) -> Any:
        """The answer to a body sent alone."""
        work = self.work(body)
        return self.render([row for text in work.encoded for row in self.run([text])], work)


def short_enough(
    endpoint: Endpoint, tokenizer_json: bytes, bodies: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The bodies that the endpoint answers: it refuses those that are too long where the reference
    would not cut them. Raises ConversionRefused where it refuses the golden one, the first, or
    another for what is no length."""
    reads_on = endpoint.task in TASKS_CUT_BY_TOKENIZER and not endpoint.tokens.truncate
    # Nothing is computed.
    local = LocalEndpoint(endpoint, tokenizer_json, lambda _: [])
    found: list[dict[str, Any]] = []
    for body in bodies:
        try:
            local.work(body)
        except ServingError as error:
            if not (found and reads_on and error.kind.code == "too_large"):
                raise _for_the_owner(endpoint.tokens, error) from error
        else:
            found.append(body)
    return found


def _for_the_owner(tokens: Tokens, error: ServingError) -> ConversionRefused:
    """The refusal of a fixed request in the words of whoever converts the model."""
    code, field, limit = error.kind.code, error.field, error.limit
    if code == "impossible" and field is None and limit is not None and limit == tokens.known_ids:
        return ConversionRefused(
            "a fixed request has a token that the model does not know; the files may not belong "
            f"together, such as a tokenizer with more pieces than the model's {limit}"
        )
    # Of what a text stands beside, and of a question's windows, the count leaves the text out.
    beside = field in ("question", "doc_stride", "candidate_labels", "hypothesis_template")
    if beside or (code, limit) == ("too_large", tokens.max_length):
        size = "" if beside else f", which has {error.got}"
        return ConversionRefused(
            f"texts of at most {tokens.max_length} tokens have no room for a fixed request{size}: "
            "name a longer --max-length"
        )
    return ConversionRefused(f"a fixed request is none that this endpoint answers: {error.message}")


def _plain(value: Any) -> Any:
    """Without numpy's types, as a caller reads it from JSON."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.tolist() if hasattr(value, "tolist") else value
