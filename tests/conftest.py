"""What every test folder shares: tiny real tokenizers and endpoint.json texts."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import hypothesis
import pytest
import uvloop
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from tests.shared_servers import SHARING, STACKS, SharedServers

if TYPE_CHECKING:
    from tests.kept_graphs import KeptGraphs

# A slow machine is no failure: hypothesis would let an example take 200 ms. And one run tests what
# another does, with CI in the environment, which hypothesis looks at, and without.
hypothesis.settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
# Others each time, and more of them: --hypothesis-profile=search
hypothesis.settings.register_profile(
    "search", hypothesis.settings.get_profile("repeatable"), derandomize=False, max_examples=1000
)
hypothesis.settings.load_profile("repeatable")

# torch's threads sleep while they wait for each other, as where the command line runs. Else tests
# beside each other took up to forty times their time of a processor: one turns until it is ended
# for the one that it waits for.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The host's app on its own has the SDK parse every Python file of the checkout that its virtual
# environment is in: half a minute of a processor beside the tests, which no container has.
os.environ["GIT_CEILING_DIRECTORIES"] = str(Path(__file__).resolve().parents[1])

SENTENCES = [
    "the quick brown fox jumps over the lazy dog",
    "a kettle of tea and two cups stand on the table",
    "rain fell on the roof all night and the street shone",
]


# What takes longest, longest first: begun last, it would keep a process busy and the others idle.
# Of make test are "stack", ten_thousand, and those from test_architectures to test_wrong_engine:
# only some of few tests. The last are of make test-compose.
_LONGEST = (
    "tests/stack/test_proof.py", "tests/stack/test_rollout.py", "stack", "tests/stack/test_tune.py",
    "tests/stack/test_live_change.py", "every_task", "tests/stack/test_host_traps.py",
    "tests/stack/test_attack.py", "tests/stack/test_storage_and_clock.py",
    "tests/stack/test_faults.py", "tests/stack/test_generation_demo.py",
    "tests/stack/test_kept_bundles.py", "tests/gateway/test_ten_thousand.py",
    "tests/stack/test_changes.py", "tests/stack/test_watch.py", "tests/stack/test_monitoring.py",
    "tests/test_architectures.py", "tests/engine/test_language_model_proof.py",
    "tests/test_hangs.py", "tests/gateway/test_fuzz.py", "tests/gateway/test_wrong_engine.py",
    "tests/compose/test_documented.py", "containers", "tests/compose/test_network_address.py",
)  # fmt: skip

# What the tests of these folders share are servers. Its files run one after the other, so that no
# server stands by beside other tests: a gateway's, with a stock app, take 7 % of a core idle.
_TOGETHER = (
    "tests/gateway/", "tests/stack/", "tests/control_plane/", "tests/deploy/", "tests/engine/",
)  # fmt: skip

# None is the root's name; the others are those that our modules write to.
_LOGGERS = (
    None,
    "engine",
    "engine.container",
    "engine.controller",
    "engine.triton",
    "transformer_serving",
    "transformer_serving.gateway",
    "transformer_serving.preprocess",
    "transformer_serving.traces",
)
_LOST = pytest.StashKey[bool]()
_BEGUN = pytest.StashKey[dict[str | None, "LoggerState"]]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file runs in one process, and so do all that share a stack."""
    from xdist.scheduler import LoadFileScheduling

    class FilesAndStacks(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return SHARING.get(file, file)

        def _assign_work_unit(self, node: Any) -> None:
            """First what is known to be long, then folders that share, then what has most tests."""
            turns = sorted(self.workqueue, key=_turn)
            for scope in reversed(turns):
                self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    return FilesAndStacks(config, log) if config.getvalue("dist") == "loadfile" else None


def _turn(scope: str) -> tuple[int, int]:
    """Files of one turn stay as they are, that is, those of most tests first."""
    long = _LONGEST.index(scope) if scope in _LONGEST else len(_LONGEST)
    folders = (at for at, folder in enumerate(_TOGETHER) if scope.startswith(folder))
    return long, next(folders, len(_TOGETHER))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SharedServers())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of make test-stack no file is imported that has nothing for it: most have not."""
    if config.option.markexpr.startswith("long and") and collection_path.match("test_*.py"):
        return None if _has_long(collection_path) else True
    return None


@functools.cache
def _has_long(file: Path) -> bool:
    return "pytest.mark.long" in file.read_text("utf-8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Hold the lists of files that share a stack to what they ask for."""
    for item in items:
        file = item.nodeid.partition("::")[0]
        if item.get_closest_marker("long"):
            assert _has_long(item.path), f"{file}: make test-stack looks for pytest.mark.long there"
        if file.startswith("tests/stack/"):
            for fixture in STACKS.keys() & set(getattr(item, "fixturenames", ())):
                wrong = f"{file} has the stack of '{fixture}': name it in tests/shared_servers.py"
                assert SHARING.get(file) == fixture, wrong


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Until pytest_runtestloop: what is imported stays, and to look at it takes seconds."""
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """A plugin that schemathesis imports at the end is imported before the tests.

    In an environment without bytecode the import parses, and Python 3.11.7 ends it in a SystemError
    where the collector meets a task meanwhile whose exception nobody asked for: to print that, it
    parses too.
    """
    # It needs what is not installed: its bytecode is all that is wanted.
    with contextlib.suppress(ImportError):
        importlib.import_module("schemathesis.reporting.allure")
    # Tests that collect would look at every object of the libraries each time, for minutes in all.
    gc.enable()
    gc.collect()
    gc.freeze()


class LoggerState(NamedTuple):
    """What can keep a logger's lines from a test that waits for them; `everywhere` is of all."""

    level: int
    disabled: bool
    propagate: bool
    handlers: int
    everywhere: int

    @classmethod
    def of(cls, name: str | None) -> LoggerState:
        logger = logging.getLogger(name)
        # The root's are pytest's own, and there within a phase of a test alone.
        handlers = len(logger.handlers) if name else 0
        everywhere = logging.root.manager.disable
        return cls(logger.level, logger.disabled, logger.propagate, handlers, everywhere)

    def restore(self, name: str | None) -> None:
        logger = logging.getLogger(name)
        logger.disabled, logger.propagate = self.disabled, self.propagate
        logger.setLevel(self.level)
        logging.disable(self.everywhere)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Loggers are the process's: one that was left quieter would hide lines from this test."""
    begun = item.session.stash.setdefault(_BEGUN, {name: LoggerState.of(name) for name in _LOGGERS})
    _tell_of_loggers(item, "setup", "before this test")
    for name, state in begun.items():
        state.restore(name)
    for handler in _pytests_handlers(item.config):
        handler.setLevel(logging.NOTSET)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    _tell_of_loggers(item, call.when, "at its end")


def _pytests_handlers(config: pytest.Config) -> Sequence[logging.Handler]:
    """The same for all tests: whoever sets the level of the root's leaves them deaf."""
    plugin = config.pluginmanager.get_plugin("logging-plugin")
    return (plugin.caplog_handler, plugin.report_handler) if plugin else ()


def _tell_of_loggers(item: pytest.Item, phase: str, when: str) -> None:
    """Where the test fails, its report says which loggers were not as they are wanted."""
    for name, state in item.session.stash[_BEGUN].items():
        found = LoggerState.of(name)
        if found != state:
            item.add_report_section(phase, "loggers", f"{name or 'root'} {when}: {found}")
    for handler in _pytests_handlers(item.config):
        if handler.level or handler.filters:
            what = f"{handler!r} {when}: level {handler.level}, filters {handler.filters}"
            item.add_report_section(phase, "loggers", what)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A process of tests has ended; where it was lost, so are those that it had yet to run."""
    if error is not None:
        node.config.stash[_LOST] = True


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Of a run that broke nothing is asked again: some of its tests never ran."""
    config = session.config
    whole = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    cached = config.pluginmanager.has_plugin("cacheprovider")
    if cached and (not whole or config.stash.get(_LOST, False)):
        config.cache.set("cache/lastfailed", {})


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests run on the loop that serves: its timers, handles and transports are its own."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def tokenizer_json() -> bytes:
    """A WordPiece tokenizer trained here, with BERT's special tokens around one text or two."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=special)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return str(tokenizer.to_str()).encode()


@pytest.fixture
def endpoint_fields() -> dict[str, Any]:
    """endpoint.json of a two-label classifier, as a dict to change."""
    return {
        "schema": 1,
        "bundle_version": 77,
        "bundle_hash": "ab" * 32,
        "task": "text-classification",
        "inputs": [
            {"name": name, "role": name, "dtype": "INT32"}
            for name in ("input_ids", "token_type_ids", "attention_mask")
        ],
        "head": "sequence",
        "outputs": [{"name": "output", "dtype": "FP32", "dims": [2]}],
        "tokens": {
            "max_length": 32,
            "buckets": [8, 16, 32],
            "pad_id": 0,
            "pad_token": "[PAD]",
            "pad_type_id": 0,
            "padding_side": "right",
            "truncate": False,
        },
        "limits": {
            "max_texts": 100,
            "max_characters": 10_000,
            "max_tokens": 2_000,
            "max_batch_size": 8,
        },
        "classification": {
            "labels": ["NEGATIVE", "POSITIVE"],
            "problem_type": "single_label",
            "activation": "softmax",
        },
        "embedding": None,
    }


@pytest.fixture
def generation_fields() -> dict[str, Any]:
    """endpoint.json of a language model of 80 tokens and 64 positions, as a dict to change."""
    from tests.text_engine import fields

    return fields(chat_template=None)


@pytest.fixture
def endpoint_json(endpoint_fields: dict[str, Any]) -> str:
    return json.dumps(endpoint_fields)


@pytest.fixture(scope="session")
def tiny_classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder: a small random classifier of three labels with its tokenizer."""
    from tests.tiny_models import save_classifier

    return save_classifier(tmp_path_factory.mktemp("tiny") / "tiny-classifier")


@pytest.fixture(scope="session")
def kept_graphs(tmp_path_factory: pytest.TempPathFactory) -> KeptGraphs:
    """Exports that all processes of the run share."""
    from tests.kept_graphs import KeptGraphs, shared_folder

    return KeptGraphs(shared_folder(tmp_path_factory))


@pytest.fixture
def graphs_are_kept(kept_graphs: KeptGraphs) -> Iterator[None]:
    """What the test converts is exported once a run, whichever test is first."""
    from tests.kept_graphs import conversions_of

    with conversions_of(kept_graphs):
        yield


@pytest.fixture(scope="session")
def tiny_bundle(
    tiny_classifier: Path, kept_graphs: KeptGraphs, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The classifier's bundle for ONNX Runtime."""
    from tests.kept_graphs import conversions_of
    from transformer_serving.desk.conversion.encoder import ConvertRequest, convert

    target = tmp_path_factory.mktemp("bundles") / "tiny"
    request = ConvertRequest(
        str(tiny_classifier), engine="onnxruntime", buckets=(8, 16, 32), batch=(1, 2, 4)
    )
    with conversions_of(kept_graphs):
        convert(request, target, lambda step, detail: None)
    return target
