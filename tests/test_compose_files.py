"""docker/ and compose/ against the tables they must agree with; no Docker needed."""

from __future__ import annotations

import json
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tomllib
import yaml
from click.testing import CliRunner

from tests.compose.stock import stock_file
from transformer_serving.contract.body_limits import MAX_TIMEOUT_MS
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.gate.release import kit_version
from transformer_serving.contract.settings import preprocess as preprocess_settings
from transformer_serving.contract.settings.polls import SERVING_POLL
from transformer_serving.contract.settings.stop import STOP_SECONDS
from transformer_serving.contract.signatures import TRUSTED_KEYS_VARIABLE
from transformer_serving.contract.worker import tracing
from transformer_serving.desk.compose.__main__ import (
    EXAMPLE,
    WITH_SETTINGS,
    example_env,
    main as write_files,
    with_settings,
)
from transformer_serving.desk.compose.variables import HOST_NAME, TRACES, variables
from transformer_serving.desk.env_file import read_env_file
from transformer_serving.desk.local import parts
from transformer_serving.desk.versions.lock import Lock, read_lock
from transformer_serving.engine.container_commands import GRACE_VARIABLE
from transformer_serving.gateway import settings as gateway_settings
from transformer_serving.gateway.access import (
    ACCESS,
    KEYS_FILE,
    PUBLISHED,
    TLS_CERT,
    TLS_CLIENT_CA,
    TLS_KEY,
)
from transformer_serving.gateway.routes import ROUTES

ROOT = Path(__file__).parent.parent
COMPOSE_FILES = sorted((ROOT / "compose").glob("*.yaml"))
DOCKERFILES = sorted((ROOT / "docker").glob("*/Dockerfile"))


@pytest.fixture
def lock() -> Lock:
    return read_lock()


def arguments(name: str) -> dict[str, str]:
    """A Dockerfile's build arguments with their defaults."""
    text = (ROOT / "docker" / name / "Dockerfile").read_text("utf-8")
    return dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.MULTILINE))


def test_what_is_made_from_the_table_is_as_it_is_made_now() -> None:
    """`make example-env` renews all."""
    assert EXAMPLE.read_text("utf-8") == example_env()
    for path in WITH_SETTINGS:
        text = path.read_text("utf-8")
        assert text == with_settings(text)


def test_example_env_holds_every_variable_of_every_compose_file() -> None:
    used = {
        name
        for path in COMPOSE_FILES
        for name in re.findall(r"\$\{([A-Z][A-Z0-9_]*)", path.read_text("utf-8"))
    }
    assert used == {row.name for row in variables()}
    assert read_env_file(EXAMPLE) == {row.name: row.default for row in variables()}


def test_no_page_has_a_container_killed() -> None:
    """Docker takes any signal of it for a stop by hand, which `unless-stopped` heeds for good."""
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        found = re.search(r"^docker (?:compose )?.*\bkill\b", page.read_text("utf-8"), re.MULTILINE)
        assert found is None, f"{page.name}: {found and found[0]}"


def test_containers_on_the_stock_file_have_the_names_that_the_runbooks_have_there() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
    named = set(re.findall(r"\bclearml-serving-(?:inference|triton)\b", page))
    services = stock_file()["services"]
    assert named == {"clearml-serving-inference", "clearml-serving-triton"}
    assert named <= {service["container_name"] for service in services.values()}


def test_every_setting_reaches_the_inference_container() -> None:
    for path in WITH_SETTINGS:
        text = path.read_text("utf-8")
        for row in (*preprocess_settings.SETTINGS, *gateway_settings.SETTINGS, *tracing.SETTINGS):
            assert f"\n      {row.name}: ${{{row.name}:-" in text


@pytest.mark.parametrize("file", WITH_SETTINGS, ids=lambda path: path.name)
def test_what_opentelemetry_reads_reaches_the_containers(file: Path) -> None:
    prefix = "clearml-serving-" if file.name == "clearml-serving.yaml" else ""
    inference, triton = (
        service(file.name, f"{prefix}{name}")["environment"] for name in ("inference", "triton")
    )
    passed = {
        row.name.replace("TRANSFORMER_SERVING_", "OTEL_"): f"${{{row.name}:-}}"
        for row in TRACES.variables
    }
    assert passed.items() <= inference.items()
    both = {name for name in passed if name in triton}
    # Triton has a name of its own in traces, and its library another unit.
    assert passed.keys() - both == {"OTEL_SERVICE_NAME", "OTEL_EXPORTER_OTLP_TIMEOUT"}


def service(file: str, name: str) -> dict[str, Any]:
    text = (ROOT / "compose" / file).read_text("utf-8")
    # What compose's own tags stand before.
    values = yaml.safe_load(re.sub(r"!(override|reset)\b", "", text))
    found: dict[str, Any] = values["services"][name]
    return found


def image_of(file: str, name: str) -> str:
    """A service's, where nobody sets a tag."""
    return re.sub(r"\$\{\w+:-(\S+)\}", r"\1", service(file, name)["image"])


@pytest.mark.parametrize(
    ("file", "name"),
    [("compose.yaml", "inference"), ("clearml-serving.yaml", "clearml-serving-inference")],
)
def test_what_says_who_gets_in_reaches_the_gateway(file: str, name: str) -> None:
    """Of each file whose front door it is, also where it is published."""
    gateway = service(file, name)
    environment, mounted = gateway["environment"], gateway["volumes"]
    bind = "${TRANSFORMER_SERVING_BIND:-127.0.0.1}"
    assert gateway["ports"] == [f"{bind}:${{TRANSFORMER_SERVING_PORT:-8080}}:8080"]
    assert environment[PUBLISHED] == bind
    assert {row.name for row in ACCESS} <= set(environment)
    for name, target in (("KEYS", "keys"), ("TLS", "tls")):
        folder = f"TRANSFORMER_SERVING_{name}_FOLDER"
        assert f"${{{folder}:-no-{target}}}:/run/{target}:ro" in mounted
    assert environment[KEYS_FILE.name] == "${TRANSFORMER_SERVING_KEYS_FOLDER:+/run/keys/keys.json}"
    assert environment[TLS_CERT.name] == "${TRANSFORMER_SERVING_TLS_FOLDER:+/run/tls/tls.crt}"
    assert environment[TLS_KEY.name] == "${TRANSFORMER_SERVING_TLS_FOLDER:+/run/tls/tls.key}"
    shown = environment["TRANSFORMER_SERVING_HEALTH_CERT"]
    assert shown == f"${{{TLS_CLIENT_CA.name}:+/run/tls/health.crt}}"


@pytest.mark.parametrize("name", ["inference", "triton", "serving-service"])
def test_what_the_local_control_plane_made_goes_with_its_address(name: str) -> None:
    given = service("compose.yaml", name)["environment"]
    ours = given["TRANSFORMER_SERVING_LOCAL_API"]
    assert given["CLEARML_API_HOST"] == f"${{CLEARML_API_HOST:-{ours}}}"
    made = [value for key, value in given.items() if key in {f"{one}_FILE" for one in secrets()}]
    assert len(made) == 3
    text = (ROOT / "docker" / "entrypoint.py").read_text("utf-8")
    (folder,) = re.findall(r'^LOCAL_FOLDER = Path\("(.*)"\)$', text, re.MULTILINE)
    assert all(value.startswith(f"{folder}/") for value in made)


@pytest.mark.parametrize(("file", "names"), [
    ("compose.yaml", ("inference", "triton")),
    ("clearml-serving.yaml", ("clearml-serving-inference", "clearml-serving-triton")),
])  # fmt: skip
def test_whose_bundles_are_served_reaches_all_that_load_them(
    file: str, names: tuple[str, ...]
) -> None:
    for name in names:
        passed = service(file, name)["environment"][TRUSTED_KEYS_VARIABLE]
        assert passed == f"${{{TRUSTED_KEYS_VARIABLE}:-}}"


@pytest.mark.parametrize(("file", "names"), [
    ("compose.yaml", ("inference", "triton", "serving-service")),
    ("clearml-serving.yaml", ("clearml-serving-inference", "clearml-serving-triton")),
])  # fmt: skip
def test_containers_know_the_machine_by_the_name_that_doctor_advises(
    file: str, names: tuple[str, ...]
) -> None:
    for name in names:
        # A Docker without its own bridge refuses to start a container with `host-gateway`.
        address = "${TRANSFORMER_SERVING_HOST_ADDRESS:-host-gateway}"
        assert service(file, name)["extra_hosts"] == [f"{HOST_NAME}:{address}"]


def test_triton_is_told_how_often_the_workers_look() -> None:
    """Its grace is made of both polls where nobody sets one."""
    worker, triton = (
        service("compose.yaml", name)["environment"] for name in ("inference", "triton")
    )
    assert triton[SERVING_POLL.name] == worker[SERVING_POLL.name]
    assert triton[GRACE_VARIABLE] == f"${{{GRACE_VARIABLE}:-}}"
    stock = service("clearml-serving.yaml", "clearml-serving-triton")["environment"]
    theirs = stock_file()["services"]["clearml-serving-inference"]["environment"]
    assert stock[SERVING_POLL.name] == theirs[SERVING_POLL.name]


def test_behind_the_balancer_tls_is_its_own() -> None:
    """The workers get neither the variables nor the folder of the private key."""
    balancer, worker = (service("scale.yaml", name) for name in ("balancer", "inference"))
    front = service("compose.yaml", "inference")
    for row in (TLS_CERT, TLS_KEY, TLS_CLIENT_CA):
        assert balancer["environment"][row.name] == front["environment"][row.name]
        assert worker["environment"][row.name] == ""
    assert worker["volumes"] == ["no-tls:/run/tls:ro"]
    assert not any("/run/keys" in volume for volume in balancer["volumes"])
    # HAProxy would wait for the watch of its certificates as for a child of its own.
    assert balancer["init"] is True


def test_an_endpoints_code_is_told_where_the_others_are_wherever_they_are_published() -> None:
    """Within the container, where the port is always one. clearml-serving 1.3.5 does not read it,
    and its `send_request` asks that address without TLS."""
    front, worker = (service(name, "inference") for name in ("compose.yaml", "scale.yaml"))
    (published,) = front["ports"]
    own = f"127.0.0.1:{published.rpartition(':')[2]}/serve"
    asked = [each["environment"]["CLEARML_DEFAULT_BASE_SERVE_URL"] for each in (front, worker)]
    # Behind the balancer a worker has no TLS.
    assert asked == [f"http${{TRANSFORMER_SERVING_TLS_FOLDER:+s}}://{own}", f"http://{own}"]


def test_the_balancers_threads_and_connections_fit_its_limits() -> None:
    """Else HAProxy takes a thread for each CPU, and as many connections as there are files."""
    text = (ROOT / "docker" / "balancer" / "haproxy.cfg").read_text("utf-8")
    numbers = [
        int(found)
        for name in ("thread-hard-limit", "maxconn", "tune.bufsize")
        for found in re.findall(rf"^    {re.escape(name)} (\d+)$", text, re.MULTILINE)
    ]
    threads, every, front, buffer = numbers
    limits = service("scale.yaml", "balancer")["deploy"]["resources"]["limits"]
    # A master, the shell's two watches with a sleep each, and the container's init.
    assert threads + 8 < limits["pids"]
    # The health check and the watches of certificates are let in when callers are not.
    assert front < every
    # A request, what may be sent again, an answer; OpenSSL's own beside them.
    assert front * (3 * buffer + 50_000) < 1 << 30
    assert limits["memory"] == "1g"


@pytest.mark.parametrize("part", ["inference", "triton"])
@pytest.mark.parametrize(
    ("file", "prefix"), [("compose.yaml", ""), ("clearml-serving.yaml", "clearml-serving-")]
)
def test_the_threads_of_many_workers_are_the_operators_to_allow(
    file: str, prefix: str, part: str
) -> None:
    limits = service(file, f"{prefix}{part}")["deploy"]["resources"]["limits"]
    (row,) = (row for row in variables() if row.name == f"{part.upper()}_PIDS")
    assert limits["pids"] == f"${{{row.name}:-{row.default}}}"
    # Workers of sixty threads each.
    assert int(row.default) >= 64 * 60


def test_how_many_run_is_said_where_every_up_reads_it() -> None:
    """`up` without the number of an earlier `--scale` stops all but one."""
    for file, name in (("scale.yaml", "inference"), ("compose.yaml", "triton")):
        assert service(file, name)["scale"] == f"${{{name.upper()}_CONTAINERS:-1}}"
    for page in (ROOT / "docs").rglob("*.md"):
        blocks = re.findall(
            r"^```\w*\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
        )
        assert not [block for block in blocks if "--scale" in block], page.name


def ups(file: str) -> list[list[str]]:
    """What each `up` of the pages that has this file names behind its options."""
    lines = [
        line
        for page in ("compose.md", "monitoring.md")
        for line in (ROOT / "docs" / page).read_text("utf-8").replace("\\\n", " ").splitlines()
        if re.search(rf"-f compose/{file} up\b", line)
    ]
    return [
        [word for word in line.partition(" up ")[2].split() if not word.startswith("-")]
        for line in lines
    ]


def test_monitoring_is_started_without_the_serving_containers() -> None:
    """Which were made with files that the line does not name."""
    names = ["prometheus", "alertmanager", "grafana"]
    assert ups("monitoring.yaml") == [names, names]
    for name in names:
        assert service("monitoring.yaml", name)["depends_on"] == []
        # Grafana makes its database at its first start, and `up --wait` ends at what is unhealthy.
        assert service("monitoring.yaml", name)["healthcheck"]["start_period"] == "120s"


def test_nothing_starts_on_the_stock_file_that_cannot_be_pulled() -> None:
    """Its Kafka and ZooKeeper, which neither of our services needs."""
    names = ["clearml-serving-inference", "clearml-serving-triton"]
    assert ups("clearml-serving.yaml") == [names]
    needed = [service("clearml-serving.yaml", name)["depends_on"] for name in names]
    assert needed == [["clearml-serving-triton"], []]


def test_no_page_of_another_site_reads_prometheus() -> None:
    """As with `up --monitoring`: told nothing, it lets the pages of any site."""
    prometheus = service("monitoring.yaml", "prometheus")
    [published] = prometheus["ports"]
    address = published.removesuffix(":9090").replace("127.0.0.1", re.escape("127.0.0.1"))
    assert f"--web.cors.origin=http://{address}" in prometheus["command"]


def test_no_program_starts_a_thread_for_each_cpu_of_a_large_machine() -> None:
    for name in ("alertmanager", "grafana"):
        watcher = service("monitoring.yaml", name)
        threads = int(watcher["environment"]["GOMAXPROCS"])
        assert threads * 10 < watcher["deploy"]["resources"]["limits"]["pids"]
    for file in DOCKERFILES:
        assert len(re.findall(r"^    OPENBLAS_NUM_THREADS=1\b", file.read_text("utf-8"), re.M)) == 1


def test_what_is_copied_into_an_image_its_user_can_read() -> None:
    """COPY keeps the modes of a checkout, which under a strict umask are for its owner alone."""
    ours = "/opt/transformer-serving"
    for file in DOCKERFILES:
        *stages, _ = file.read_text("utf-8").split("\nUSER 10001:10001\n")
        for stage in stages:
            before, _, after = stage.rpartition(f"chmod -R a+rX {ours}")
            copied = re.findall(rf"^COPY .* ({ours}\S*)$", before, re.MULTILINE)
            assert copied
            assert "\nCOPY" not in after


def test_the_balancers_own_errors_are_of_ours() -> None:
    text = (ROOT / "docker" / "balancer" / "haproxy.cfg").read_text("utf-8")
    form = r"http-error status (\d+) .* string '(.*)'(?: hdr Retry-After (\d+))?\n"
    rows = re.findall(form, text)
    assert [status for status, _, _ in rows] == ["503", "504"]
    for status, said, retry_after in rows:
        body = json.loads(said)
        ours = ServingError(body["code"], body["message"])
        assert (int(status), body) == (ours.kind.status, ours.body())
        assert retry_after == str(ours.retry_after_s or "")


def of_page(language: str, holds: str) -> str:
    """The block of docs/compose.md that holds these words."""
    page = (ROOT / "docs" / "compose.md").read_text("utf-8")
    blocks = re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (found,) = (block for block in blocks if holds in block)
    return str(found)


def test_an_endpoints_own_backend_gets_every_path_that_names_it() -> None:
    (pattern,) = re.findall(r"\{ path_reg (\S+) \}", of_page("haproxy", "use_backend"))
    paths = {route.path for route in ROUTES} | {"/serve/{name}", "/serve/{name}/{version}"}
    for path in paths:
        for name in ("transformer_model", "transformer_model2", "a_transformer_model"):
            asked = path.replace("{name}", name).replace("{version}", "2")
            is_its_own = "{name}" in path and name == "transformer_model"
            assert bool(re.search(pattern, asked)) == is_its_own, asked


def test_an_endpoints_own_backend_is_else_as_the_others() -> None:
    kept = (ROOT / "docker" / "balancer" / "haproxy.cfg").read_text("utf-8")

    def lines(backend: str) -> list[str]:
        _, _, body = backend.partition("\n")
        rows = [row.strip() for row in body.splitlines()]
        return [row for row in rows if row and not row.startswith(("#", "http-check send"))]

    shown = of_page("haproxy", "use_backend").split("backend transformer_model\n")[1]
    assert lines(f"\n{shown}") == lines(kept.split("\nbackend ")[1])


def secrets() -> set[str]:
    """The credentials of which the images take a file."""
    text = (ROOT / "docker" / "entrypoint.py").read_text("utf-8")
    (listed,) = re.findall(r"^SECRETS = \((.*?)^\)", text, re.MULTILINE | re.DOTALL)
    return set(re.findall(r'"(\w+)"', listed))


def test_the_page_says_of_which_credentials_a_file_is_taken() -> None:
    """Those that the compose files do not give are named beside a file that gives one."""
    known = secrets()
    given = set(
        re.findall(r"(\w+)_FILE: /run/secrets", (ROOT / "compose/secrets.yaml").read_text())
    )
    assert given < known
    # Headers for the receiver of traces are such as its key.
    assert "OTEL_EXPORTER_OTLP_HEADERS" in known
    page = (ROOT / "docs" / "compose.md").read_text("utf-8")
    (said,) = re.findall(r"The images know `NAME_FILE` also for (.*?)\. ", page, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", said)) == known - given
    example = yaml.safe_load(of_page("yaml", "_KEY_FILE: /run/secrets"))
    for name in ("inference", "triton"):
        (variable,) = example["services"][name]["environment"]
        assert variable.removesuffix("_FILE") in known - given


def test_git_leaves_out_every_file_that_holds_secrets() -> None:
    page = (ROOT / "docs" / "compose.md").read_text("utf-8")
    written = set(re.findall(r"\bsecrets/[\w./-]+\b", page))
    written |= set(re.findall(r"(?:--env-file|--file|backup >) ((?!docker/)[\w./-]+)", page))
    assert written > {"my.env", "secrets/keys/keys.json", "control-plane.tar"}
    asked = ["git", "check-ignore", "--no-index", *sorted(written)]
    ignored = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert set(ignored.splitlines()) == written


def test_the_balancer_waits_longer_than_any_deadline() -> None:
    """Else it answers, and the gateway's own 504 or a late answer is lost."""
    text = (ROOT / "docker" / "balancer" / "haproxy.cfg").read_text("utf-8")
    (seconds,) = map(int, re.findall(r"^    timeout server (\d+)s$", text, re.MULTILINE))
    assert seconds > MAX_TIMEOUT_MS / 1000
    for row in (preprocess_settings.TIMEOUT_S, preprocess_settings.GENERATION_TIMEOUT_S):
        assert seconds > row.high


def test_the_images_are_built_on_what_the_lock_pins(lock: Lock) -> None:
    assert arguments("python")["BASE_IMAGE"] == lock.base_images["inference"].value
    triton = arguments("triton")
    assert triton["TRITON_IMAGE"] == lock.image.image
    assert triton["TRITON_RELEASE"] == lock.image.release
    assert triton["TRITON_VERSION"] == lock.image.triton
    assert triton["TENSORRT_VERSION"] == lock.image.tensorrt
    assert triton["ONNXRUNTIME_VERSION"] == lock.image.onnxruntime
    scale = (ROOT / "compose" / "scale.yaml").read_text("utf-8")
    assert f"image: {lock.base_images['balancer'].value}\n" in scale
    monitoring = (ROOT / "compose" / "monitoring.yaml").read_text("utf-8")
    for name in ("prometheus", "alertmanager", "grafana"):
        assert f"image: {lock.base_images[name].value}\n" in monitoring


def test_images_and_labels_carry_the_kits_version() -> None:
    for path in DOCKERFILES:
        assert arguments(path.parent.name)["KIT_VERSION"] == kit_version()
    tags = {
        tag
        for path in COMPOSE_FILES
        for tag in re.findall(r"image: transformer-serving/[\w-]+:(\S+)", path.read_text("utf-8"))
    }
    assert tags == {f"${{TRANSFORMER_SERVING_IMAGE_TAG:-{kit_version()}}}"}


@pytest.mark.parametrize("image", ["inference", "control-plane", "triton"])
def test_an_images_lock_has_what_the_tests_run(image: str) -> None:
    """The same version as the desk's of everything that takes part in a request."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = {
        re.split(r"[\[<>=]", row)[0] for row in extras["optional-dependencies"][f"image-{image}"]
    }
    desk, locked = pins("desk.lock"), pins(f"image-{image}.lock")
    names = {name.lower().replace("_", "-") for name in locked}
    assert {name.lower() for name in wanted} <= names
    for name in wanted & set(desk):
        # The newest numpy has left Python 3.10 behind.
        if (image, name) != ("triton", "numpy"):
            assert locked[name] == desk[name], name


def pins(name: str) -> dict[str, str]:
    rows = (ROOT / "requirements" / name).read_text("utf-8").splitlines()
    return dict(row.split("==") for row in rows if not row.startswith("#"))


def test_containers_configure_the_sdk_as_the_embedded_stack_does() -> None:
    assert (ROOT / "docker" / "clearml.conf").read_text("utf-8") == parts.SDK_CONFIGURATION


def test_the_image_context_is_an_allow_list() -> None:
    rows = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    rules = [row for row in rows if not row.startswith("#")]
    assert rules[0] == "*"
    sources = re.findall(
        r"^COPY (?!--from)(.+) \S+$", "\n".join(map(Path.read_text, DOCKERFILES)), re.M
    )
    for source in {name for row in sources for name in row.split()}:
        assert any(source == rule[1:] or source.startswith(f"{rule[1:]}/") for rule in rules)


def test_roll_is_executable_and_waits_as_docker_does() -> None:
    """Without a time of its own, `docker stop` takes the container's."""
    roll = ROOT / "compose" / "roll.sh"
    assert roll.stat().st_mode & stat.S_IXUSR
    stops = re.findall(r"docker stop .*", roll.read_text("utf-8"))
    assert stops
    assert not [stop for stop in stops if "-t" in stop]
    text = (ROOT / "docker" / "balancer" / "haproxy.cfg").read_text("utf-8")
    assert f'hard-stop-after "${{{STOP_SECONDS.name}-{STOP_SECONDS.default}}}s"' in text


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("example.env", 2)])
def test_who_asks_how_it_is_used_has_nothing_written(
    argument: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[object] = []
    monkeypatch.setattr("transformer_serving.desk.compose.__main__.replace_file", written.append)
    done = CliRunner().invoke(write_files, [argument])
    assert (done.exit_code, written) == (code, [])
