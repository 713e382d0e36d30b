"""A conversation as the one text that the model continues, by its chat template.

Compiled as transformers.utils.chat_template_utils does (5.2): a sandbox that changes nothing, with
`raise_exception`, `strftime_now`, `tojson`, loop controls, and the tag `generation`, a mere mark.

Tested by tests/preprocess/generation/test_request.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from preprocess.generation.messages import Message
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.generation import Generation


def render_chat(messages: Sequence[Message], generation: Generation) -> str:
    """The prompt, special tokens written out. Raises ServingError (422)."""
    if generation.chat_template is None:
        raise ServingError(
            "impossible",
            "the endpoint's model has no chat template; send a prompt instead of messages",
            field="messages",
        )
    import jinja2

    try:
        template = _compiled(generation.chat_template)
        text: str = template.render(
            messages=[dict(row) for row in messages], tools=None, documents=None,
            add_generation_prompt=True, **generation.special_tokens,
        )  # fmt: skip
    except (jinja2.exceptions.TemplateError, ArithmeticError, LookupError, TypeError, ValueError):
        # Its words may repeat the messages.
        raise ServingError(
            "impossible",
            "the model's chat template refuses these messages; many want roles user and assistant "
            "in turn, and none of system",
            field="messages",
        ) from None
    return text


@lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    # Only where a conversation is sent: a container may be without jinja2 otherwise.
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Marked(Extension):
        """{% generation %}, around what an assistant said: it is as it would be without."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            inside = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(inside, lineno=line)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Marked, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = _now
    return environment.from_string(template)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None,
    separators: tuple[str, str] | None = None, sort_keys: bool = False,
) -> str:  # fmt: skip
    """Jinja's own escapes what HTML would read."""
    options: Mapping[str, Any] = {
        "ensure_ascii": ensure_ascii, "indent": indent, "separators": separators,
        "sort_keys": sort_keys,
    }  # fmt: skip
    return json.dumps(value, **options)
