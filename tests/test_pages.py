"""The pages: found from docs/README.md, their links lead somewhere, stored pictures are shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.report import documents
from benchmarks.runs.results import RESULTS
from preprocess.answers.spans import MOST_SPANS
from preprocess.generation.dialects.generate import LACKS
from scripts import decisions_index as index, engine_parameters
from transformer_serving.contract.body_limits import MAX_TIMEOUT_MS
from transformer_serving.desk.export.endpoint_json import LIMITS, limits_of

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
PRODUCT = ("transformer_serving", "preprocess", "docker", "benchmarks", "scripts")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
# What stands in a code block or a generated part's comment is no heading.
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def links(page: Path) -> list[tuple[Path, str]]:
    """Where the page's links lead: a file, and the heading's anchor or nothing."""
    text = FENCED.sub("", page.read_text("utf-8"))
    return [
        ((page.parent / target).resolve() if target else page, anchor)
        for target, anchor in LINK.findall(text)
    ]


def anchors(page: Path) -> set[str]:
    text = FENCED.sub("", page.read_text("utf-8"))
    return {index.anchor(title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists(), target
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{target.name}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_deploy_behind_containers_or_pods_is_not_one_to_the_embedded_stack(page: Path) -> None:
    """Which `make up` leaves in .stack, also when it is down."""
    for block in FENCED.findall(page.read_text("utf-8")):
        if not re.search(r"^(docker compose|helm) ", block, re.MULTILINE):
            continue
        block = block.replace("\\\n", " ")
        for found in re.finditer(r"transformer-serving deploy .*", block):
            assert "--state none" in found[0]
            assert 'eval "$server" &&' in block[: found.start()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_who_deploys_what_make_up_has_built_elsewhere_is_told_to_stop_its_stack(page: Path) -> None:
    """Its ports are those that compose publishes and that kubectl forwards."""
    text = page.read_text("utf-8")
    for block in FENCED.findall(text):
        if re.search(r"^(docker compose|helm) ", block, re.MULTILINE) and "build/demo/" in block:
            assert "`make down`" in text.partition(block)[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_command_has_a_comment_behind_it(page: Path) -> None:
    """An interactive zsh takes it for arguments, and an apostrophe in it for an open quote."""
    # A block of no named language is what is typed, or what is printed.
    blocks = re.findall(
        r"^ *```(\w*)\n(.*?)^ *```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    typed = [block for language, block in blocks if language in {"", "bash", "console"}]
    assert [
        line for block in typed for line in block.splitlines() if re.search(r"\S +#", line)
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_shell_is_left_to_export_all_that_it_is_told(page: Path) -> None:
    """Keys and settings of one command would be those of every later one."""
    assert not re.findall(r"^ *set -a.*", page.read_text("utf-8"), re.MULTILINE)


def test_a_page_to_type_from_names_the_python_of_the_environment() -> None:
    """Debian and Ubuntu have no bare one; `python3` is a container's or a Triton's."""
    bare = re.compile(r"(?<![/\w.-])python\s+-m\b")
    pages = [page for page in PAGES if index.PAGE.parent not in page.parents]
    assert [page.name for page in pages if bare.search(page.read_text("utf-8"))] == []


def test_nobody_is_sent_to_a_name_on_the_index_that_is_not_ours() -> None:
    """The project is not on PyPI: whoever registers its name there would be installed."""
    sent = re.compile(r"install\s+[\"']*\s*[\"']?transformer-serving\b")
    files = [path for name in PRODUCT for path in (ROOT / name).rglob("*.py")]
    for path in [*PAGES, *files]:
        assert not sent.search(path.read_text("utf-8")), path


def test_every_page_is_linked_from_the_index() -> None:
    found = {target for target, _ in links(DOCS / "README.md")}
    assert {path for path in DOCS.glob("*.md") if path.name != "README.md"} <= found
    assert index.PAGE in found
    assert DOCS / "README.md" in {target for target, _ in links(ROOT / "README.md")}


def test_every_command_has_a_row() -> None:
    program = Path(sys.executable).with_name("transformer-serving")
    done = subprocess.run([program, "--help"], capture_output=True, text=True, check=True)
    commands = re.findall(r"^  ([a-z-]+)(?:  |$)", done.stdout.partition("Commands:")[2], re.M)
    assert "deploy" in commands
    table = (DOCS / "commands.md").read_text("utf-8")
    for name in commands:
        assert re.search(rf"`(transformer-serving )?{name}[ `]", table), name


def test_the_index_of_decisions_is_what_the_pages_say() -> None:
    assert index.PAGE.read_text("utf-8") == index.page()


def test_the_engines_parameters_are_what_is_declared() -> None:
    assert engine_parameters.table() in engine_parameters.PAGE.read_text("utf-8")


def test_a_superseded_decision_says_by_what() -> None:
    for path in index.subjects():
        for one in index.decisions(path.read_text("utf-8")):
            assert one.status.startswith("in force") or "](" in one.status, one.title


def test_a_decision_without_date_and_status_is_refused() -> None:
    with pytest.raises(ValueError, match="'New' has no line"):
        index.decisions(
            "# A subject\n\n## Old\n\n2026-11-20, in force\n\nx\n\n## New\n\nBecause.\n"
        )


def test_the_limits_of_a_request_are_those_that_convert_writes() -> None:
    page = " ".join((ROOT / "docs" / "api.md").read_text("utf-8").split())
    many = limits_of("sentence-embedding").max_texts
    assert limits_of("sentence-similarity").max_texts == many
    others = f"sentence-embedding and sentence-similarity {many:,}"
    texts = f"at most {LIMITS.max_texts:,} texts ({others})"
    text, together = f"{LIMITS.max_characters:,} characters", f"{LIMITS.max_tokens:,} tokens"
    assert f"{texts}, a text {text}, and all texts together {together}." in page
    v2 = (ROOT / "docs" / "protocols" / "v2.md").read_text("utf-8")
    assert f"A request has {texts}, and of text-generation {LIMITS.max_texts:,}" in v2
    shown = f'"limit": {LIMITS.max_texts}, "got": {LIMITS.max_texts + 1}}}'
    assert shown in (ROOT / "docs" / "errors.md").read_text("utf-8")


def test_the_refusals_of_the_api_page_have_the_codes_numbers() -> None:
    page = " ".join((DOCS / "api.md").read_text("utf-8").split())
    assert f"| `timeout_ms` | whole milliseconds, 1 to {MAX_TIMEOUT_MS:,} (else 400)," in page
    assert f"`max_seq_len` times `max_answer_len` is above {MOST_SPANS:,}," in page
    assert f"windows of 4,096 tokens an answer of more than {MOST_SPANS // 4096:,};" in page
    assert f"a list of at most {LIMITS.max_texts:,} words (else 413)" in page


def test_what_the_generate_extension_takes_only_to_ask_for_nothing_is_all_named() -> None:
    page = " ".join((DOCS / "protocols" / "v2.md").read_text("utf-8").split())
    [said] = re.findall(r"without effect\), `min_tokens`\. (.*?),? may be there with", page)
    assert set(re.findall(r"`(\w+)`", said)) == set(LACKS)


def test_every_stored_result_is_read_by_a_table_or_shown_by_a_page() -> None:
    """Others are drawn again by `make bench-tables` and ignored by git."""
    read = {f"{kind}.json" for kind in documents.KINDS}
    stored = {path.name for path in RESULTS.glob("*.json") if ".unfinished" not in path.name}
    assert stored <= read
    shown = {target for page in PAGES for target, _ in links(page)}
    pictures = [*RESULTS.glob("flames/*.svg"), *RESULTS.glob("plots/curve-*.png")]
    assert pictures
    assert set(pictures) <= shown
