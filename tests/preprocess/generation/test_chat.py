"""Conversations by a chat template, as transformers renders them, in whichever form it reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from preprocess.dialects.operation import Asked
from preprocess.generation.chat import fault_of, render_chat
from preprocess.generation.dialects import WAYS
from preprocess.generation.messages import read_messages
from preprocess.generation.request import TextTask
from tests.text_engine import TEMPLATE, fields
from transformer_serving.contract.endpoint import read_endpoint
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.generation import Generation

# Llama 3's form, with what templates of its time use: loop controls, filters, a mark.
LLAMA = """{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'tool' %}{% continue %}{% endif %}
    {%- generation %}
    {{- '<|' + message['role'] + '|>' + message['content'] | trim + eos_token }}
    {%- endgeneration %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""


@pytest.fixture
def generation() -> Generation:
    made = read_endpoint(json.dumps(fields())).generation
    assert made is not None
    return made


CHAT = [
    {"role": "user", "content": " What is <tea>? "},
    {"role": "tool", "content": "left out"},
    {"role": "assistant", "content": "A drink."},
    {"role": "user", "content": "Ünd?"},
]


# SmolVLM's form, which reads parts alone, and Gemma 3's, which reads either.
OF_PARTS = (
    "{% for row in messages %}{{ row.role | capitalize }}: {% for part in row.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{{ eos_token }}{% endfor %}"
)
OF_FIRST_PARTS = (
    "{% for row in messages %}{{ row.role + ': ' + row.content[0].text + eos_token }}{% endfor %}"
)
OF_BOTH = (
    "{% for row in messages %}{% if row.content is string %}{{ row.content | trim }}{% else %}"
    "{% for part in row.content %}{{ part.text | trim }}{% endfor %}{% endif %}{% endfor %}"
)


def in_parts(messages: list[dict[str, str]], parts: int = 1) -> list[dict[str, Any]]:
    """Each text as so many parts, all but the first empty."""
    beside = [{"type": "text", "text": ""}] * (parts - 1)
    return [
        {**row, "content": [{"type": "text", "text": row["content"]}, *beside]} for row in messages
    ]


def rendered_by_transformers(messages: list[dict[str, Any]], made: Generation) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    special: dict[str, Any] = dict(made.special_tokens)
    rendered: Any = render_jinja_template(
        [messages], chat_template=made.chat_template, add_generation_prompt=True, **special
    )
    return str(rendered[0][0])


def with_template(generation: Generation, template: str | None) -> Generation:
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    return Generation(**{**vars(generation), "chat_template": template, "special_tokens": special})


@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        LLAMA,
        TEMPLATE,
        "{{ messages | tojson }} {{ messages | tojson(indent=2) }}",
        "{% for row in messages %}\n  {% if loop.first %}\n{{ row.content }}\n  {% endif %}\n"
        "{% if row.role == 'assistant' %}{% break %}{% endif %}{% endfor %}",
        "{% set seen = namespace(n=0) %}{% for row in messages %}{% set seen.n = seen.n + 1 %}"
        "{% endfor %}{{ seen.n }} {{ messages[0].content }}"
        "{{ strftime_now('%Y') }} {{ tools is none }}",
    ],
)
def test_conversations_are_rendered_as_transformers_does(
    generation: Generation, template: str
) -> None:
    made = with_template(generation, template)
    assert render_chat(CHAT, made) == rendered_by_transformers(CHAT, made)


@pytest.mark.slow
@pytest.mark.parametrize("sent_in_parts", [False, True])
@pytest.mark.parametrize(
    ("template", "reads_parts"),
    [
        (LLAMA, False),
        (TEMPLATE, False),
        (OF_BOTH, False),
        (OF_PARTS, True),
        (OF_FIRST_PARTS, True),
    ],
)
def test_a_template_is_handed_the_form_that_it_reads(
    generation: Generation, template: str, reads_parts: bool, sent_in_parts: bool
) -> None:
    made = with_template(generation, template)
    sent = in_parts(CHAT) if sent_in_parts else CHAT
    wanted = rendered_by_transformers(in_parts(CHAT) if reads_parts else CHAT, made)
    assert "What is <tea>?" in wanted
    limits = read_endpoint(json.dumps(fields())).limits
    assert render_chat(read_messages(sent, limits), made) == wanted


@pytest.mark.slow
def test_a_template_of_parts_is_handed_each_of_them(generation: Generation) -> None:
    counting = (
        "{% for row in messages %}{{ row.content | map(attribute='text') | list }}{% endfor %}"
    )
    made, sent = with_template(generation, counting), in_parts(CHAT, 3)
    assert render_chat(sent, made) == rendered_by_transformers(sent, made)
    made = with_template(generation, TEMPLATE)
    assert render_chat(sent, made).startswith(CHAT[0]["content"] + "\n\n ")


@pytest.mark.parametrize(
    ("template", "roles"),
    [
        (
            "{% for row in messages %}{% if row.role == 'human' %}WRITTEN{% endif %}{% endfor %}",
            ["human"],
        ),
        ('{% for row in messages if row.role == "query" %}WRITTEN{% endfor %}', ["query"]),
        ("{% for row in messages[1:] %}WRITTEN{% endfor %}", ["system", "user"]),
        (
            "{% if messages[0].role != 'system' %}{{ raise_exception('begin with it') }}{% endif %}"
            "{% for row in messages %}WRITTEN{% endfor %}",
            ["system", "user"],
        ),
    ],
    ids=["human", "query", "behind-system", "wants-system"],
)
@pytest.mark.parametrize("written", ["{{ row.content | upper }}", "{{ row.content[0].text }}"])
def test_a_template_that_wants_other_messages_than_a_users_is_handed_its_form(
    generation: Generation, template: str, roles: list[str], written: str
) -> None:
    made = with_template(generation, template.replace("WRITTEN", written))
    assert fault_of(made) is None
    prompt = render_chat([{"role": role, "content": "7 TEAS"} for role in roles], made)
    assert prompt.endswith("7 TEAS")


# Qwen's form, which writes a text of its own where no system speaks; Zephyr's, which passes over
# whom it does not know; and one that writes every role.
WITH_DEFAULT = (
    "{% if messages[0].role == 'system' %}<system>{{ messages[0].content }}{% else %}"
    "<system>I help.{% endif %}{% for row in messages %}{% if row.role in ['user', 'assistant'] %}"
    "<{{ row.role }}>{{ row.content }}{% endif %}{% endfor %}"
)
OF_KNOWN_ROLES = (
    "{% for row in messages %}{% if row.role == 'user' %}<user>{{ row.content }}"
    "{% elif row.role == 'system' %}<system>{{ row.content }}{% endif %}{% endfor %}"
)
OF_ANY_ROLE = "{% for row in messages %}<{{ row.role }}>{{ row.content }}{% endfor %}"
# gpt-oss's form, which knows either.
OF_DEVELOPERS = (
    '{% for row in messages %}{% if row.role == "developer" or row.role == "system" %}'
    "<{{ row.role }}>{{ row.content }}{% else %}<user>{{ row.content }}{% endif %}{% endfor %}"
)
FROM_DEVELOPER = [
    {"role": "developer", "content": "In French."},
    {"role": "user", "content": "developer?"},
]


def rendered(template: str, messages: Any, operation: str = "openai.chat") -> str:
    """What a model of that template is given of a body at OpenAI's path."""
    endpoint = read_endpoint(json.dumps(fields(chat_template=template)))
    assert endpoint.generation is not None
    asked = Asked({"messages": messages}, b"", TextTask(endpoint.generation), endpoint)
    own = WAYS[operation].read(asked)
    return render_chat(read_messages(own["messages"], endpoint.limits), endpoint.generation)


@pytest.mark.parametrize("operation", ["openai.chat", "openai.tgi_chat"])
@pytest.mark.parametrize(
    ("template", "role"),
    [
        (WITH_DEFAULT, "system"),
        (OF_KNOWN_ROLES, "system"),
        (OF_ANY_ROLE, "system"),
        (OF_DEVELOPERS, "developer"),
    ],
    ids=["with-default", "of-known-roles", "of-any-role", "of-developers"],
)
def test_what_openais_developer_says_is_in_the_prompt(
    template: str, role: str, operation: str
) -> None:
    said = rendered(template, FROM_DEVELOPER, operation)
    assert said == f"<{role}>In French.<user>developer?"


def test_a_template_that_takes_no_system_refuses_openais_developer() -> None:
    with pytest.raises(ServingError, match="refuses these messages"):
        rendered(TEMPLATE, FROM_DEVELOPER)


@pytest.mark.parametrize("messages", [None, "developer", ["developer"], [{"role": ["developer"]}]])
def test_what_are_no_messages_is_refused_as_it_came(messages: Any) -> None:
    with pytest.raises(ServingError) as refusal:
        rendered(OF_ANY_ROLE, messages)
    assert refusal.value.kind.code == "invalid_field"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('x' + messages[0].content) }}", "refuses these messages"),
        ("{{ messages[9].content.nothing }}", "refuses these messages"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "refuses these messages"),
        ("{{ messages.append(1) }}", "refuses these messages"),
        ("{{ 1 / 0 }}", "refuses these messages"),
        ("{% if %}", "cannot be read; send a prompt"),
        ("{{ messages[0].content | no_such_filter }}", "cannot be read; send a prompt"),
        ("{% for _ in messages %}" * 30 + "{% endfor %}" * 30, "cannot be read; send a prompt"),
        ("{{ messages[0].role }}", "writes nothing of what a message says; send a prompt"),
        ("{{ messages[0].content.texts }}", "writes nothing of what a message says"),
        (
            "{% for row in messages %}{% if row.role == 'assistant' %}{{ row.content }}{% endif %}"
            "{% endfor %}",
            "writes nothing of what a message says",
        ),
    ],
)
def test_what_cannot_be_rendered_is_impossible(
    generation: Generation, template: str | None, said: str
) -> None:
    with pytest.raises(ServingError, match=said) as refusal:
        render_chat(CHAT, with_template(generation, template))
    assert refusal.value.kind.code == "impossible"
    assert "<tea>" not in refusal.value.message
