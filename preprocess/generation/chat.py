"""A conversation as the one text that the model continues, by its chat template.

Compiled as transformers.utils.chat_template_utils does (5.2): a sandbox that changes nothing, with
`raise_exception`, `strftime_now`, `tojson`, loop controls, and the tag `generation`, a mere mark.

A template reads the content of a message as a text or as a list of parts, and writes nothing of it
where it comes in the other form, without an error. So which it reads is tried once, and each
message is handed to it so.

Tested by tests/preprocess/generation/test_chat.py and tests/source/test_language_model.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from preprocess.generation.messages import Message, text_of
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.generation import Generation

# In no template, and the same whatever a template trims or writes in capitals.
_PROBE = "7392615840"
# What a template raises beside Jinja's own errors.
_MISTAKES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True)
class _Template:
    """`reads_parts` is None where what a message says is written in neither form."""

    compiled: Any
    special_tokens: Mapping[str, str]
    reads_parts: bool | None = False

    def render(self, messages: Sequence[Message]) -> str:
        """Raises Jinja's TemplateError, and _MISTAKES."""
        form = _as_parts if self.reads_parts else text_of
        text: str = self.compiled.render(
            messages=[{**row, "content": form(row["content"])} for row in messages],
            tools=None, documents=None, add_generation_prompt=True, **self.special_tokens,
        )  # fmt: skip
        return text


def render_chat(messages: Sequence[Message], generation: Generation) -> str:
    """The prompt, special tokens written out. Raises ServingError (422)."""
    if generation.chat_template is None:
        raise _no_conversation("the endpoint's model has no chat template")
    from jinja2.exceptions import TemplateError

    try:
        template = _template(generation.chat_template, *generation.special_tokens.items())
    except (TemplateError, SyntaxError, *_MISTAKES):
        raise _no_conversation("the chat template of the endpoint's model cannot be read") from None
    if template.reads_parts is None:
        raise _no_conversation(
            "the chat template of the endpoint's model writes nothing of what a message says"
        )
    try:
        return template.render(messages)
    except (TemplateError, *_MISTAKES):
        # Its words may repeat the messages.
        raise ServingError(
            "impossible",
            "the model's chat template refuses these messages; many want roles user and assistant "
            "in turn, and none of system",
            field="messages",
        ) from None


def fault_of(generation: Generation) -> str | None:
    """What is wrong with the model's chat template, None where it has none or a user's message
    becomes a prompt. One that refuses that message alone in words of its own has no fault.
    """
    if generation.chat_template is None:
        return None
    from jinja2.exceptions import TemplateError

    try:
        template = _template(generation.chat_template, *generation.special_tokens.items())
    except (TemplateError, SyntaxError, *_MISTAKES) as error:
        return f"cannot be read ({_said(error)})"
    if template.reads_parts is None:
        return "writes nothing of what a message says"
    try:
        template.render([{"role": "user", "content": _PROBE}])
    except (TemplateError, *_MISTAKES) as error:
        # Jinja's own errors are all of kinds below it.
        if type(error) is not TemplateError:
            return f"fails on a user's message ({_said(error)})"
    return None


def _said(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _no_conversation(why: str) -> ServingError:
    return ServingError("impossible", f"{why}; send a prompt instead of messages", field="messages")


@lru_cache(maxsize=8)
def _template(source: str, *special_tokens: tuple[str, str]) -> _Template:
    """Raises Jinja's TemplateError, SyntaxError and _MISTAKES where it cannot be compiled."""
    of_texts = _Template(_compiled(source), dict(special_tokens))
    of_parts = replace(of_texts, reads_parts=True)
    writes_texts = _writes(of_texts)
    if not writes_texts and _writes(of_parts):
        return of_parts
    # One that wants other messages than the one that is tried says so by an error.
    return replace(of_texts, reads_parts=None) if writes_texts is False else of_texts


def _writes(template: _Template) -> bool | None:
    """Whether what a user says is in the prompt; None where the template raises an error."""
    from jinja2.exceptions import TemplateError

    try:
        return _PROBE in template.render([{"role": "user", "content": _PROBE}])
    except (TemplateError, *_MISTAKES):
        return None


def _as_parts(content: str | Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [dict(part) for part in content]


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
