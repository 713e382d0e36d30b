"""A conversation as the one text that the model continues, by its chat template.

Compiled as transformers.utils.chat_template_utils does (5.2): a sandbox that changes nothing, with
`raise_exception`, `strftime_now`, `tojson`, loop controls, and the tag `generation`, a mere mark.

A template reads the content of a message as a text or as a list of parts, and writes nothing of it
where it comes in the other form, without an error. So which it reads is tried once, with a user's
message or one that the template wants instead, and each message is handed to it so.

Tested by tests/preprocess/generation/test_chat.py and tests/source/test_language_model.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from preprocess.generation.messages import Message, text_of
from transformer_serving.contract.error_line import first_line
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.generation import Generation

# In no template, and the same whatever a template trims or writes in capitals.
_PROBE = "7392615840"
# Words in quotes, among which are the roles that a template tells apart.
_QUOTED = re.compile(r"""(?<=["'])\w{1,64}(?=["'])""")
_USUAL_ROLES = {"user", "assistant", "system", "tool"}
# What a template raises beside Jinja's own errors.
_MISTAKES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True)
class _Template:
    """`reads_parts` is None where what a message says is written in neither form. `fault` says so,
    or why a user's message fails, unless the template refuses it in words of its own.
    """

    compiled: Any
    special_tokens: Mapping[str, str]
    reads_parts: bool | None = False
    fault: str | None = None

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


@lru_cache(maxsize=8)
def words_of(template: str) -> Mapping[str, None]:
    """Those in quotes, in their order: where a template tells a role apart, its name is one."""
    return dict.fromkeys(_QUOTED.findall(template))


def fault_of(generation: Generation) -> str | None:
    """What is wrong with the model's chat template, None where it has none or a message becomes a
    prompt. One that refuses a user's message in words of its own has no fault: it wants others.
    """
    if generation.chat_template is None:
        return None
    from jinja2.exceptions import TemplateError

    try:
        return _template(generation.chat_template, *generation.special_tokens.items()).fault
    except (TemplateError, SyntaxError, *_MISTAKES) as error:
        return f"cannot be read ({_said(error)})"


def _said(error: BaseException) -> str:
    return first_line(error) or type(error).__name__


def _no_conversation(why: str) -> ServingError:
    return ServingError("impossible", f"{why}; send a prompt instead of messages", field="messages")


@lru_cache(maxsize=8)
def _template(source: str, *special_tokens: tuple[str, str]) -> _Template:
    """Raises Jinja's TemplateError, SyntaxError and _MISTAKES where it cannot be compiled."""
    from jinja2.exceptions import TemplateError

    of_texts = _Template(_compiled(source), dict(special_tokens))
    of_parts = replace(of_texts, reads_parts=True)
    for roles in _conversations(source):
        for template in (of_texts, of_parts):
            if _writes(template, roles):
                return template
    try:
        of_texts.render(_saying("user"))
    except (TemplateError, *_MISTAKES) as error:
        # Jinja's own errors are all of kinds below it.
        if type(error) is TemplateError:
            return of_texts
        return replace(of_texts, fault=f"fails on a user's message ({_said(error)})")
    return replace(of_texts, reads_parts=None, fault="writes nothing of what a message says")


def _conversations(source: str) -> Iterator[tuple[str, ...]]:
    """The roles of those that are tried: a user's alone, one behind a system's, and where the
    template knows of no user, those that it names."""
    yield ("user",)
    yield ("system", "user")
    named = words_of(source)
    if "user" not in named:
        yield from ((name,) for name in named if name not in _USUAL_ROLES)


def _saying(*roles: str) -> list[Message]:
    """A conversation of these, whose last message is the one that is looked for."""
    return [
        *({"role": role, "content": "-"} for role in roles[:-1]),
        {"role": roles[-1], "content": _PROBE},
    ]


def _writes(template: _Template, roles: Sequence[str]) -> bool:
    """Whether what is said last is in the prompt."""
    from jinja2.exceptions import TemplateError

    try:
        return _PROBE in template.render(_saying(*roles))
    except (TemplateError, *_MISTAKES):
        return False


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
