from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from transformer_serving.contract.settings.polls import SERVING_POLL
from transformer_serving.contract.settings.setting import Setting, TextSetting
from transformer_serving.gateway.access import KEYS_FILE, OPEN, TLS_CERT
from transformer_serving.gateway.request_id import HEADER, request_id
from transformer_serving.gateway.server import command
from transformer_serving.gateway.settings import (
    GENERATE_ENDPOINT,
    GRACEFUL_SECONDS,
    GRPC_PORT,
    ROOT_ENDPOINT,
    SETTINGS,
    WORKERS,
    GatewaySettings,
    read_settings,
)

NUMBERS = [setting for setting in SETTINGS if isinstance(setting, Setting)]
# What each bundle's code, and each worker, would raise where only a traceback says so.
OF_OTHERS = [
    ("TRANSFORMER_SERVING_TRANSPORT", "pigeon", "must be one of http, grpc"),
    (
        "TRANSFORMER_SERVING_TRITON_HTTP",
        "triton",
        "host:port, the port from 1 to 65535, or unix:/path",
    ),
    ("TRANSFORMER_SERVING_TIMEOUT_S", "30s", "must be a number from 0.001 to 86400"),
    ("TRANSFORMER_SERVING_MAX_WAIT_S", "0", "must be a number from 0.001 to 86400"),
    ("TRANSFORMER_SERVING_CALLS_IN_FLIGHT", "0", "must be a whole number from 1 to 64"),
    ("TRANSFORMER_SERVING_MAX_STREAMS", "-1", "must be a whole number from 1 to 100000"),
    ("TRANSFORMER_SERVING_TRACE_RATIO", "all", "must be a number from 0 to 1"),
    *(
        (SERVING_POLL.name, wrong, "must be a number from 0.001 to 86400")
        for wrong in ("0,1", "6s", "0", "-1", "nan", "inf", "86401")
    ),
]


def test_defaults() -> None:
    assert read_settings({}) == GatewaySettings(
        max_body_bytes=2_000_000,
        max_body_elements=100_000,
        body_memory_bytes=64 * 2**20,
        body_seconds=60.0,
        body_stall_seconds=10.0,
        drain_seconds=0.0,
        page=True,
        grpc_port=0,
        generate_endpoint="",
        root_endpoint="",
        log_requests=False,
        graceful_seconds=30.0,
    )
    assert all(setting.help.endswith(".") for setting in SETTINGS)


# Each variable's text, its field, and what stands there.
GIVEN: dict[str, tuple[str, str, object]] = {
    "TRANSFORMER_SERVING_MAX_BODY_BYTES": ("31", "max_body_bytes", 31),
    "TRANSFORMER_SERVING_MAX_BODY_ELEMENTS": ("32", "max_body_elements", 32),
    "TRANSFORMER_SERVING_BODY_MEMORY_BYTES": ("3300000", "body_memory_bytes", 3_300_000),
    "TRANSFORMER_SERVING_BODY_SECONDS": ("34", "body_seconds", 34.0),
    "TRANSFORMER_SERVING_BODY_STALL_SECONDS": ("35", "body_stall_seconds", 35.0),
    "TRANSFORMER_SERVING_DRAIN_SECONDS": ("36", "drain_seconds", 36.0),
    "TRANSFORMER_SERVING_GRACEFUL_SECONDS": ("37", "graceful_seconds", 37.0),
    "TRANSFORMER_SERVING_PAGE": ("0", "page", False),
    "TRANSFORMER_SERVING_GRPC_PORT": ("38", "grpc_port", 38),
    "TRANSFORMER_SERVING_GENERATE_ENDPOINT": ("texts", "generate_endpoint", "texts"),
    "TRANSFORMER_SERVING_ROOT_ENDPOINT": ("masks/2", "root_endpoint", "masks/2"),
    "TRANSFORMER_SERVING_LOG_REQUESTS": ("1", "log_requests", True),
}


@pytest.mark.parametrize("name", [row.name for row in SETTINGS])
def test_each_variable_has_its_field(name: str) -> None:
    text, field, value = GIVEN[name]
    expected = dataclasses.asdict(read_settings({})) | {field: value}
    assert dataclasses.asdict(read_settings({name: text})) == expected


def test_help_shows_the_defaults_that_count() -> None:
    shown = " ".join(command._parser().format_help().split())
    for setting in (GRACEFUL_SECONDS, GRPC_PORT, WORKERS):
        assert f"[{setting.name}] (default: {setting.default})" in shown
    assert "the files of the pages at / and /docs then needs one" in shown


@pytest.mark.parametrize("given", [(), ("--graceful-seconds=7", "--grpc-port=8001", "--workers=2")])
def test_a_flag_that_is_not_given_leaves_its_variable(given: tuple[str, ...]) -> None:
    named = command._named(command._parser().parse_args(given))
    flags = {GRACEFUL_SECONDS.name: "7", GRPC_PORT.name: "8001", WORKERS.name: "2"}
    assert named == (flags if given else {})


def test_flags_of_who_gets_in_are_their_variables() -> None:
    given = ["--open", "--keys=keys.json", "--tls-cert=/run/tls.pem"]
    named = command._named(command._parser().parse_args(given))
    # The workers may be started elsewhere.
    keys = str(Path("keys.json").absolute())
    assert named == {OPEN.name: "1", KEYS_FILE.name: keys, TLS_CERT.name: "/run/tls.pem"}


def test_an_empty_variable_is_an_unset_one() -> None:
    assert read_settings({setting.name: "" for setting in SETTINGS}) == read_settings({})


def test_all_bodies_have_room_for_one() -> None:
    with pytest.raises(
        ValueError, match=r"^TRANSFORMER_SERVING_BODY_MEMORY_BYTES must be at least"
    ):
        read_settings({"TRANSFORMER_SERVING_MAX_BODY_BYTES": "100000000"})


@pytest.mark.parametrize("setting", NUMBERS, ids=lambda setting: setting.name)
@pytest.mark.parametrize("value", ["-1", "x", "nan", "1e12", "inf"])
def test_a_wrong_value_names_its_variable(setting: object, value: str) -> None:
    name = setting.name  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=f"^{name} must be a (whole )?number from"):
        read_settings({name: value})


@pytest.mark.parametrize("setting", [GENERATE_ENDPOINT, ROOT_ENDPOINT], ids=lambda one: one.name)
def test_a_name_that_no_endpoint_can_have_names_its_variable(setting: TextSetting) -> None:
    for good in ("masks", "masks/2"):
        assert setting.text({setting.name: good}) == good
    for wrong in ("/masks", "masks endpoint", "/serve/masks", "http://127.0.0.1:8080/serve/masks"):
        with pytest.raises(
            ValueError, match=f"^{setting.name} must be .*NAME or NAME/VERSION"
        ) as e:
            read_settings({setting.name: wrong})
        assert wrong not in str(e.value)


# What each is read as, where it is: by a whole number's setting, and by another.
NUMBERS_AS_TEXTS: dict[str, tuple[float | None, float | None]] = {
    "5": (5, 5),
    " 5 ": (5, 5),
    "5.": (5, 5),
    "5.0": (5, 5),
    "5e0": (5, 5),
    "+5": (5, 5),
    "2e+07": (2e7, 2e7),
    "0.5e1": (None, 5),
    ".5": (None, 0.5),
    "1e-3": (None, 0.001),
    "50e-1": (None, 5),
    "5,0": (None, None),
    "0x5": (None, None),
    "5s": (None, None),
    " ": (None, None),
}


@pytest.mark.parametrize("text", NUMBERS_AS_TEXTS)
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_schema_takes_each_form_that_is_read(text: str, is_whole: bool) -> None:
    """A chart that refused one would keep a release that serves from its next upgrade."""
    setting = Setting("SOME", "1", 0, 1e9, "Some.", is_whole)
    whole, other = NUMBERS_AS_TEXTS[text]
    expected = whole if is_whole else other
    if expected is None:
        with pytest.raises(ValueError, match="^SOME must be"):
            setting.number({"SOME": text})
        return
    assert setting.number({"SOME": text}) == expected
    assert re.search(setting.pattern, text.strip())


def test_a_settings_bounds_are_taken() -> None:
    setting = Setting("SOME", "1", 0.5, 8, "Some.")
    assert [setting.number({"SOME": text}) for text in ("0.5", "8")] == [0.5, 8]
    for beyond in ("0.49", "8.01"):
        with pytest.raises(ValueError, match="^SOME must be a number from 0.5 to 8: set one"):
            setting.number({"SOME": beyond})


def test_large_whole_numbers_are_read_as_templates_write_them() -> None:
    """Helm's print 20000000 as 2e+07."""
    assert (
        read_settings({"TRANSFORMER_SERVING_MAX_BODY_BYTES": "2e+07"}).max_body_bytes == 20_000_000
    )


def test_half_a_port_is_none() -> None:
    with pytest.raises(ValueError, match="GRPC_PORT must be a whole number from 0 to 65535"):
        read_settings({GRPC_PORT.name: "8001.5"})


@pytest.mark.parametrize(("name", "value", "words"), OF_OTHERS, ids=lambda word: word)
def test_what_its_endpoints_would_refuse_is_no_start(
    name: str,
    value: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "_serve", lambda *_: 0)
    monkeypatch.setattr(command, "write_json_lines", lambda: None)
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        command.main([])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {name}")
    assert words in line
    assert ended.value.code == 2


@pytest.mark.parametrize("sane", [b"a", b"a b~!", b"x" * 128])
def test_sane_request_ids_are_taken_over(sane: bytes) -> None:
    assert request_id({HEADER: sane}) == sane


@pytest.mark.parametrize("bad", [b"", b"x" * 129, b"a\tb", b"a\n", b"\x7f", b"\xc3\xa9"])
def test_others_are_replaced(bad: bytes) -> None:
    assert len(request_id({HEADER: bad})) == len(request_id({})) == 32
