"""What the demo's language model learns; tests/stack/test_generation_demo.py has how it answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_serving.desk import demo
from transformer_serving.desk.demo import generation
from transformer_serving.desk.failure import Failure

PAGE = """# A title

A first paragraph of several words, with [a link](https://example.org)
and `code` in **its** lines. <!-- made by a program that nobody
reads -->

```bash
rm -rf all of the files that are here
```

| a | table | of | many | words | here |
|---|---|---|---|---|---|

- a point that goes on
  over two lines and ends
- another point of quite enough words

2026-11-21 a line of figures that is no prose

Too short.
"""


def test_prose_is_what_is_left_of_a_page() -> None:
    assert generation.paragraphs_of(PAGE) == [
        "A first paragraph of several words, with a link and code in its lines.",
        "a point that goes on over two lines and ends",
        "another point of quite enough words",
    ]


def test_the_pages_of_the_checkout_are_learned() -> None:
    texts = demo.learned_texts()
    assert texts[0].startswith(generation.PROMPT)
    assert 3_000 < sum(map(len, texts)) < 6_000
    for name in generation.PAGES:
        first = generation.paragraphs_of(Path(name).read_text("utf-8"))[0]
        assert first in texts, name


def test_a_page_takes_no_more_than_its_share(tmp_path: Path) -> None:
    long, short = tmp_path / "long.md", tmp_path / "short.md"
    long.write_text("\n\n".join(f"Paragraph {at} has some words in it." for at in range(999)))
    short.write_text("A page of one sentence that is kept.")
    texts = generation.read_texts([long, short])
    assert texts[-1] == "A page of one sentence that is kept."
    assert 2_000 < sum(map(len, texts)) < 3_000


def test_the_hash_follows_what_is_learned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = demo.generator_hash()
    assert before == demo.generator_hash()
    monkeypatch.setattr(demo, "learned_texts", lambda: ["my name is another."])
    assert before != demo.generator_hash()


def test_a_missing_page_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "PAGES", ("docs/no-such-page.md",))
    with pytest.raises(Failure, match=r"docs/no-such-page\.md is missing"):
        demo.learned_texts()


@pytest.mark.slow
def test_a_short_training_is_the_same_twice_and_cuts_spaces_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenizers import Tokenizer

    monkeypatch.setattr(generation, "_STEPS", 4)
    texts = [f"{generation.PROMPT}a model of a few words, which come again and again. " * 9]
    folders = [tmp_path / name for name in ("one", "two")]
    first, second = (generation.train(texts, folder) for folder in folders)
    assert first.loss == second.loss
    weights = [(folder / "model.safetensors").read_bytes() for folder in folders]
    assert weights[0] == weights[1]
    tokenizer = Tokenizer.from_file(str(folders[0] / "tokenizer.json"))
    prompt = tokenizer.encode(generation.PROMPT).ids
    assert tokenizer.encode(texts[0]).ids[: len(prompt)] == prompt
    assert tokenizer.decode(tokenizer.encode(texts[0]).ids) == texts[0]
