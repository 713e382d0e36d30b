"""A conversation as a caller sends it: checks only.

Tested by tests/preprocess/generation/test_request.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from preprocess.parameters import is_unicode
from preprocess.request import wrong
from transformer_serving.contract.endpoint import Limits
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.generation import MAX_ROLE_CHARACTERS

# What a chat template writes around each message, however little that says: those in use 20 to 60.
_MESSAGE_CHARACTERS = 64
# What clients put into a message beside its text, and no model here would be told of.
_BESIDE_TEXT = ("tool_calls", "function_call", "audio", "images")

# `role`, a text, and `content`: a text, or parts `{"type": "text", "text": …}` where it came so.
Message = Mapping[str, Any]


def read_messages(value: Any, limits: Limits) -> tuple[Message, ...]:
    """Role and content of each. Raises ServingError (400, 413, 422)."""
    if not isinstance(value, list) or not value:
        raise wrong("messages", "a list of objects with role and content", value)
    rows = tuple(map(_message, value))
    characters = characters_of(rows)
    if characters > limits.max_characters:
        raise ServingError(
            "too_large",
            "the messages have too many characters together, roles and "
            f"{_MESSAGE_CHARACTERS} for each message included; send fewer or shorter ones",
            field="messages", limit=limits.max_characters, got=characters,
        )  # fmt: skip
    return rows


def characters_of(messages: Sequence[Message]) -> int:
    """Of the text that a template makes of them, about."""
    texts = sum(len(row["role"]) + len(text_of(row["content"])) for row in messages)
    return texts + _MESSAGE_CHARACTERS * len(messages)


def text_of(content: str | Sequence[Mapping[str, str]]) -> str:
    """A message's content as one text, a line a part."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content)


def _message(value: Any) -> Message:
    if not isinstance(value, Mapping):
        raise wrong("messages", "a list of objects with role and content", value)
    beside = next((name for name in _BESIDE_TEXT if value.get(name)), None)
    if beside is not None:
        raise ServingError(
            "impossible", f"'{beside}' of a message is not supported; send messages of text alone",
            field="messages",
        )  # fmt: skip
    role, content = value.get("role"), value.get("content")
    if isinstance(content, list) and all(map(_is_text_part, content)):
        content = [{"type": "text", "text": part["text"]} for part in content]
    elif not isinstance(content, str):
        content = None
    if not isinstance(role, str) or content is None:
        raise ServingError(
            "invalid_field", "each of the 'messages' must have a role and a content of text",
            field="messages",
        )  # fmt: skip
    if len(role) > MAX_ROLE_CHARACTERS:
        raise ServingError(
            "invalid_field", "the role of a message has too many characters", field="messages",
            limit=MAX_ROLE_CHARACTERS, got=len(role),
        )  # fmt: skip
    if not is_unicode(role + text_of(content)):
        raise ServingError("invalid_field", "a message holds a lone surrogate", field="messages")
    return {"role": role, "content": content}


def _is_text_part(part: Any) -> bool:
    return (
        isinstance(part, Mapping) and part.get("type") == "text"
        and isinstance(part.get("text"), str)
    )  # fmt: skip
