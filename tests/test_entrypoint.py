"""docker/entrypoint.py, as Docker runs it: a process of its own, which becomes the program."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.kubernetes.chart import CLEARML, LOCAL, chart, one, rendered
from tests.kubernetes.test_official_chart import values as official_values
from tests.loaded_file import loaded_file
from tests.proxies import proxy_of_the_environment
from tests.small_disk import small_disk
from tests.test_compose_files import service
from transformer_serving.contract.worker.tracing import ENDPOINTS

SCRIPT = Path(__file__).parent.parent / "docker" / "entrypoint.py"
REQUIRED = "CLEARML_API_HOST"


OFFICIAL = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
POD = {**OFFICIAL, "TRANSFORMER_SERVING_OUR_CHART": "1"}


def started(
    host: str, required: str = REQUIRED, more: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    program = (sys.executable, "-c", "print('the program')")
    environment = {"CLEARML_API_HOST": host, "TRANSFORMER_SERVING_REQUIRED": required}
    environment |= more or {}
    return subprocess.run(
        [sys.executable, SCRIPT, *program], env=environment, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip


@pytest.fixture
def port() -> int:
    """One that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.skipif(os.geteuid() != 0, reason="to make a namespace of processes needs root")
def test_the_first_process_of_a_pod_leaves_when_it_is_told_to(tmp_path: Path) -> None:
    """To such a process the kernel gives no signal that it has no handler for."""
    unread = tmp_path / "key"
    os.mkfifo(unread)
    first_process = (sys.executable, str(SCRIPT), "true")
    command = ("unshare", "--pid", "--fork", "--kill-child", *first_process)
    environment = os.environ | {"CLEARML_API_ACCESS_KEY_FILE": str(unread)}
    environment.pop("CLEARML_API_ACCESS_KEY", None)
    with subprocess.Popen(command, env=environment) as begun:
        try:
            deadline = time.monotonic() + 60
            while begun.poll() is None:
                assert time.monotonic() < deadline, "it does not leave"
                for first in psutil.Process(begun.pid).children():
                    first.terminate()
                time.sleep(0.2)
        finally:
            begun.kill()
    assert begun.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1.2.3"])
def test_the_desks_own_address_is_the_containers_and_ends_it(host: str, port: int) -> None:
    """As a shell has it that has read `transformer-serving env` or that of the local profile."""
    ended = started(f"http://{host}:{port}")
    assert ended.returncode == 1
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: CLEARML_API_HOST is an address of the container itself")
    assert "a shell that has no CLEARML_ variables" in line


@pytest.mark.parametrize(
    "host", ["api.clearml.example:8008", "api", "https://", "//api", "http://["]
)
def test_an_address_without_a_scheme_is_refused_by_its_variable(host: str) -> None:
    ended = started(host, more=POD)
    assert ended.returncode == 1
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: CLEARML_API_HOST must be http:// or https://")
    assert line.endswith("give the server's own in the chart's clearml.CLEARML_API_HOST")


def test_in_a_pod_the_charts_value_is_named_and_not_composes(port: int) -> None:
    ended = started(f"http://127.0.0.1:{port}", more=POD)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.endswith("give the server's own in the chart's clearml.CLEARML_API_HOST")
    (line,) = started(f"http://127.0.0.1:{port}", more=OFFICIAL).stderr.splitlines()
    assert line.endswith("give the server's own in clearml.apiHost of the official chart's values")


MISSING = ("CLEARML_API_ACCESS_KEY", "CLEARML_SERVING_TASK_ID")


@pytest.mark.parametrize("pod", [False, True], ids=["compose", "pod"])
def test_what_is_missing_is_given_where_the_container_has_its_variables_from(pod: bool) -> None:
    ended = started("http://api", required=" ".join(MISSING), more=POD if pod else None)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"error: {', '.join(MISSING)} not set: ")
    in_compose = {"--env-file", "docker/example.env", "--profile local"}
    values = {name for name in chart().values if re.search(rf"\b{name}\b", line)}
    assert {part for part in in_compose if part in line} == (set() if pod else in_compose)
    assert values == ({"clearml", "credentials", "existingSecret", "local"} if pod else {"local"})


@pytest.mark.parametrize("part", ["inference", "triton"])
def test_what_is_missing_in_the_official_chart_is_one_of_its_values(part: str) -> None:
    values = official_values()
    given = {
        row["name"]: row["value"] for row in values[f"clearml_serving_{part}"]["extraEnvironment"]
    }
    # Where no Secret is mounted.
    required = given.pop("TRANSFORMER_SERVING_REQUIRED")
    ended = started("https://api.clear.ml", required, given | OFFICIAL)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"error: CLEARML_API_ACCESS_KEY, CLEARML_API_SECRET_KEY, {MISSING[1]} ")
    for key in ("ACCESS", "SECRET"):
        assert Path(given[f"CLEARML_API_{key}_KEY_FILE"]).name in line
    assert "clearml.servingTaskId" in line
    assert "servingTaskId" in values["clearml"]
    assert "existingAdditionalConfigsSecret" in line
    assert "existingAdditionalConfigsSecret" in values[f"clearml_serving_{part}"]
    assert "credentials" not in line


def test_our_chart_says_that_it_is_ours_to_the_entrypoint_alone() -> None:
    name = script().OUR_CHART
    for part in ("inference", "triton"):
        assert one(rendered(CLEARML), "ConfigMap", f"demo-{part}")["data"][name]
    program = ("-c", "import os; print(sorted(os.environ))")
    told = subprocess.run(
        [sys.executable, SCRIPT, sys.executable, *program], env={name: "1"}, capture_output=True,
        text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    assert name not in told


def test_a_server_in_the_hosts_network_is_asked_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert started(address).stdout == "the program\n"


@pytest.mark.parametrize(
    "host", ["http://control-plane:8008", "https://api.clear.ml", "http://192.0.2.1:1"]
)
def test_other_addresses_are_the_sdks_to_judge(host: str) -> None:
    assert started(host).stdout == "the program\n"


def test_the_control_planes_own_container_asks_itself(port: int) -> None:
    assert started(f"http://127.0.0.1:{port}", required="").stdout == "the program\n"


def script(path: Path = SCRIPT) -> Any:
    """It as a module."""
    return loaded_file(path, "entrypoint")


OURS = "http://control-plane:8008"


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        ({"CLEARML_API_HOST": OURS, "TRANSFORMER_SERVING_LOCAL_API": OURS}, True),
        ({"CLEARML_API_HOST": f"{OURS}/", "TRANSFORMER_SERVING_LOCAL_API": OURS}, True),
        # The chart's, whose folder is there with its control plane alone.
        ({"CLEARML_API_HOST": "http://demo-control-plane:8008"}, True),
        ({"CLEARML_API_HOST": "https://api", "TRANSFORMER_SERVING_LOCAL_API": OURS}, False),
    ],
)
def test_what_the_local_control_plane_made_is_for_it_alone(
    tmp_path: Path, given: dict[str, str], counts: bool
) -> None:
    """Its volume stays when another server is named: what that one's user forgot is missing."""
    module = script()
    module.LOCAL_FOLDER = tmp_path / "local"
    module.LOCAL_FOLDER.mkdir()
    (module.LOCAL_FOLDER / "serving-id").write_text("of-the-local-one\n")
    (tmp_path / "secret").write_text("a-secret\n")
    files = {
        "CLEARML_SERVING_TASK_ID_FILE": str(module.LOCAL_FOLDER / "serving-id"),
        "CLEARML_API_SECRET_KEY_FILE": str(tmp_path / "secret"),
    }
    environment = {**given, **files}
    module.read_secrets(environment)
    found = {"CLEARML_API_SECRET_KEY": "a-secret", "CLEARML_API_HOST": given["CLEARML_API_HOST"]}
    if counts:
        found = {**found, **given, "CLEARML_SERVING_TASK_ID": "of-the-local-one"}
    assert environment == found


MINE = "https://app.of-mine"


@pytest.mark.parametrize(
    ("api", "web", "files", "left"),
    [
        (OURS, OURS, OURS, {"WEB": OURS, "FILES": OURS}),
        ("https://api.clear.ml", OURS, OURS, {}),
        ("http://clearml.example:8008/", OURS, OURS, {}),
        ("http://clearml.example:8008", OURS, "s3://files", {"FILES": "s3://files"}),
        ("https://clearml.example/api", MINE, OURS, {"WEB": MINE}),
        # ClearML's SDK would know none and end.
        ("https://clearml.example/api", OURS, OURS, {"WEB": OURS, "FILES": OURS}),
    ],
)
def test_another_servers_files_are_not_the_local_control_planes(
    api: str, web: str, files: str, left: dict[str, str]
) -> None:
    environment = {"CLEARML_API_HOST": api, "TRANSFORMER_SERVING_LOCAL_API": OURS}
    environment |= {"CLEARML_WEB_HOST": web, "CLEARML_FILES_HOST": files}
    script().read_secrets(environment)
    hosts = {name: environment.get(f"CLEARML_{name}_HOST") for name in ("WEB", "FILES")}
    assert {name: host for name, host in hosts.items() if host} == left


ASKS = """
import os, urllib.error, urllib.request
try:
    urllib.request.urlopen(os.environ["ASKED"], timeout=20)
except (urllib.error.URLError, OSError):
    pass
"""


def past_the_proxy(
    patch: pytest.MonkeyPatch,
    address: str,
    environment: dict[str, str] | None = None,
    program: str = ASKS,
) -> bool:
    """Whether the program asks for that address without the proxy that its container was given."""
    with proxy_of_the_environment(patch) as came:
        given = os.environ | {"ASKED": address} | (environment or {})
        subprocess.run(
            [sys.executable, SCRIPT, sys.executable, "-c", program], env=given, check=True,
            timeout=60,
        )  # fmt: skip
        return not came


def test_the_control_plane_is_not_asked_for_by_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker's client gives the proxy of its settings to every container: it would get the keys."""
    for near in ("control-plane:8008", "host.docker.internal:8008", "127.0.0.1:1", "localhost:1"):
        assert past_the_proxy(monkeypatch, f"http://{near}"), near
    assert not past_the_proxy(monkeypatch, "http://api.invalid")
    own = {"CLEARML_API_HOST": "http://demo-control-plane:8008"}
    assert past_the_proxy(monkeypatch, own["CLEARML_API_HOST"], own)
    for name in ("http://api.clearml.svc:8008", "http://api.clearml.svc.cluster.local:8008"):
        assert past_the_proxy(monkeypatch, name, POD)
        assert not past_the_proxy(monkeypatch, name)


# clearml-serving's own client, which goes by the proxies of the environment.
CALLS = """
import grpc, os
try:
    grpc.insecure_channel(os.environ["ASKED"]).unary_unary("/a/b")(b"", timeout=20)
except grpc.RpcError:
    pass
"""


@pytest.mark.parametrize(
    "name", ["CLEARML_DEFAULT_TRITON_GRPC_ADDR", "TRANSFORMER_SERVING_TRITON_GRPC"]
)
def test_a_triton_of_this_network_is_not_called_by_a_proxy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not past_the_proxy(monkeypatch, "triton:8001", program=CALLS)
    own = {name: "triton-0:8001, triton:8001"}
    assert past_the_proxy(monkeypatch, "triton:8001", own, program=CALLS)


# With a scheme or a port: what else has no dot is a word.
ADDRESS = re.compile(r"(?:\w+://([a-z][a-z0-9-]*)\b(?:[:/].*)?|([a-z][a-z0-9-]*):\d+)")


def short_names(environment: dict[str, str]) -> set[str]:
    parts = [part.strip() for value in environment.values() for part in value.split(",")]
    return {found[1] or found[2] for part in parts if (found := ADDRESS.fullmatch(part))}


def of_compose(part: str) -> dict[str, str]:
    """Where nobody sets a variable."""
    given = service("compose.yaml", part)["environment"]
    return {
        name: re.sub(r"\$\{\w+:([-+])([^}]*)\}", lambda m: m[2] if m[1] == "-" else "", str(value))
        for name, value in given.items()
    }


def of_the_chart(part: str) -> dict[str, str]:
    return {**one(rendered(LOCAL), "ConfigMap", f"demo-{part}")["data"], **POD}


@pytest.mark.parametrize("given", [of_compose, of_the_chart])
def test_no_name_that_a_container_is_given_is_a_proxys_to_know(given: Any) -> None:
    found = set()
    for part in ("inference", "triton"):
        environment = given(part) | {"HTTP_PROXY": "http://proxy.example:3128"}
        names = short_names(environment)
        script().leave_out_proxies(environment)
        assert names <= set(environment["no_proxy"].split(",")), part
        found |= names
    own = {"demo-control-plane", "demo-triton", "demo-inference"}
    assert found == (own if given is of_the_chart else {"control-plane", "triton"})


def test_the_collector_is_asked_by_either_variable() -> None:
    assert set(ENDPOINTS) <= set(script().ASKED)


def test_the_short_names_of_a_list_of_addresses() -> None:
    assert [
        script().short_name(address)
        for address in ("triton:8001", " http://triton:8000 ", "unix:/run/triton", "a.example:1",
                        "10.0.0.1:8001", "[::1]:8001", "localhost", "http://[broken", "")
    ] == ["triton", "triton", None, None, None, None, "localhost", None, None]  # fmt: skip


def test_what_the_user_leaves_out_of_the_proxy_stays_left_out() -> None:
    def left_out(environment: dict[str, str]) -> dict[str, str]:
        script().leave_out_proxies(environment)
        return {name: environment[name] for name in environment if name.lower() == "no_proxy"}

    proxy = {"HTTPS_PROXY": "http://proxy:3128", "CLEARML_API_HOST": "https://api.clear.ml"}
    near = ",".join(script().NEAR)
    assert left_out({"CLEARML_API_HOST": "http://control-plane:8008"}) == {}
    assert left_out(dict(proxy)) == dict.fromkeys(("no_proxy", "NO_PROXY"), near)
    both = dict.fromkeys(("no_proxy", "NO_PROXY"), f"10.0.0.0/8,.corp,{near}")
    assert left_out({**proxy, "NO_PROXY": "10.0.0.0/8, .corp"}) == both
    all_hosts = {**proxy, "no_proxy": "*", "NO_PROXY": "a"}
    assert left_out(all_hosts) == dict.fromkeys(("no_proxy", "NO_PROXY"), "*")
    broken = {**proxy, "CLEARML_WEB_HOST": "http://[broken"}
    assert left_out(broken) == dict.fromkeys(("no_proxy", "NO_PROXY"), near)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """What pip installs from: a package, and two versions of the one that it needs."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name, version, needs in (
        ("wanted", "1.0", "Requires-Dist: needed\n"), ("needed", "1.0", ""), ("needed", "2.0", ""),
    ):  # fmt: skip
        info = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}.py", f"VERSION = '{version}'\n")
            metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
            wheel.writestr(f"{info}/METADATA", metadata)
            wheel.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{info}/RECORD", "")
    return folder


def image(folder: Path, lock: str) -> Any:
    """The script as an image of these packages has it, with its volume in `folder`."""
    made = folder / f"image {lock}"
    made.mkdir()
    shutil.copy(SCRIPT, made)
    (made / "image.lock").write_text(f"{lock}\n")
    module = script(made / SCRIPT.name)
    module.PACKAGES_FOLDER = folder
    return module


def test_extra_packages_leave_the_image_its_versions(tmp_path: Path, index: Path) -> None:
    """They come before its own, so that another version would be in its place."""
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    old = image(tmp_path, "needed==1.0").install(["wanted"], environment)
    assert (old / "wanted.py").exists()
    assert (old / "needed.py").read_text() == "VERSION = '1.0'\n"
    # After an upgrade of the image, on the same volume.
    new = image(tmp_path, "needed==2.0").install(["wanted"], environment)
    assert new != old
    assert (new / "needed.py").read_text() == "VERSION = '2.0'\n"


def test_extra_packages_of_another_python_are_others(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    made = image(tmp_path, "needed==1.0")
    first = made.install(["wanted"], environment)
    assert made.install(["wanted"], environment) == first
    monkeypatch.setattr(sys.implementation, "cache_tag", "cpython-399")
    assert made.install(["wanted"], environment) != first


def test_code_of_before_the_trusted_keys_left_nothing_that_runs(
    tmp_path: Path, index: Path
) -> None:
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    made = image(tmp_path, "needed==1.0")
    first = made.install(["wanted"], environment)
    (first / "sitecustomize.py").write_text("")
    environment[made.TRUSTED_KEYS] = "release:AAAA"
    second = made.install(["wanted"], environment)
    assert not (second / "sitecustomize.py").exists()
    environment[made.TRUSTED_KEYS] = "release:BBBB"
    assert made.install(["wanted"], environment) not in (first, second)


def test_another_version_than_the_images_is_refused(tmp_path: Path, index: Path) -> None:
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    with pytest.raises(SystemExit, match="build an image of your own"):
        image(tmp_path, "needed==1.0").install(["needed==2.0"], environment)


def test_extra_packages_take_no_room_outside_their_volume(tmp_path: Path, index: Path) -> None:
    """/tmp of a container is memory, 256 MB of it; pip unpacks and installs in its temporary folder
    before it moves all. What a killed container has left there goes."""
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    with zipfile.ZipFile(index / "wanted-1.0-py3-none-any.whl", "a") as wheel:
        wheel.writestr("wanted.bin", bytes(3 << 20))
    volume = tmp_path / "volume"
    left = volume / ".one.tmp" / "left"
    left.parent.mkdir(parents=True)
    left.touch()
    made = image(volume, "needed==1.0")
    with small_disk(tmp_path / "tmp", megabytes=2) as temporary:
        environment["TMPDIR"] = str(temporary)
        folder = made.install_aside(["wanted"], volume / ".one", environment)
    assert (folder / "wanted.bin").stat().st_size == 3 << 20
    assert list(volume.glob(".*")) == [folder]


def test_no_index_with_a_password_is_on_pips_command_line(tmp_path: Path) -> None:
    index, other, links = (f"https://ann:secret@{name}.example/simple" for name in "abc")
    words = ["--extra-index-url", index, "--pre", f"--find-links={links}", "-i", other, "a<2"]
    file = tmp_path / "indexes"
    made = image(tmp_path, "")
    assert made.without_indexes(words, file) == (
        ["--pre", "a<2", "--requirement", str(file)], {"PIP_INDEX_URL": other},
    )  # fmt: skip
    assert file.read_text() == f"--extra-index-url {index}\n--find-links {links}"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "line",
    [
        "a b[c]<2",
        "a --constraint https://host.example/constraints.txt",
        "--requirement https://host.example/wanted.txt --pre",
        "--editable git+https://host.example/a.git",
        "-c https://host.example/constraints.txt -U a",
        "--proxy http://ann:secret@proxy.example 'b @ https://host.example/b.whl'",
        "--config-settings 'a=b c' a",
    ],
)
def test_all_else_is_said_to_pip_as_it_stands(tmp_path: Path, line: str) -> None:
    words = shlex.split(line)
    assert image(tmp_path, "").without_indexes(words, tmp_path / "none") == (words, {})
    assert not (tmp_path / "none").exists()


def test_extra_packages_may_have_constraints_of_their_own(tmp_path: Path, index: Path) -> None:
    (tmp_path / "constraints.txt").write_text("needed==1.0\n")
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    words = ["wanted", "--constraint", (tmp_path / "constraints.txt").as_uri()]
    folder = image(tmp_path, "").install(words, environment)
    assert (folder / "needed.py").read_text() == "VERSION = '1.0'\n"


@pytest.mark.parametrize("said", ["the line", "the environment", "pip.conf"])
def test_an_index_of_its_own_leaves_the_further_ones(
    tmp_path: Path, index: Path, said: str
) -> None:
    """Each of two indexes has one of the packages."""
    urls = {name: simple_index(tmp_path / name, name, index) for name in ("wanted", "needed")}
    words = ["--index-url", urls["wanted"], "wanted"]
    environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
    if said == "the line":
        words = ["--extra-index-url", urls["needed"], *words]
    elif said == "the environment":
        environment["PIP_EXTRA_INDEX_URL"] = urls["needed"]
    else:
        environment["PIP_CONFIG_FILE"] = str(tmp_path / "pip.conf")
        Path(environment["PIP_CONFIG_FILE"]).write_text(
            f"[global]\nindex-url = file:///none\nextra-index-url = {urls['needed']}\n"
        )
    folder = image(tmp_path, "").install(words, environment)
    assert (folder / "wanted.py").exists()
    assert (folder / "needed.py").exists()


def test_a_further_index_leaves_those_of_pip_conf(tmp_path: Path, index: Path) -> None:
    urls = {name: simple_index(tmp_path / name, name, index) for name in ("wanted", "needed")}
    (tmp_path / "pip.conf").write_text(
        f"[global]\nindex-url = file:///none\nextra-index-url = {urls['needed']}\n"
    )
    environment = {**os.environ, "PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    words = ["--extra-index-url", urls["wanted"], "wanted"]
    folder = image(tmp_path, "").install(words, environment)
    assert (folder / "needed.py").exists()


def simple_index(folder: Path, package: str, wheels: Path) -> str:
    """The address of an index of that package alone."""
    (folder / package).mkdir(parents=True)
    links = (f'<a href="{one.as_uri()}">{one.name}</a>' for one in wheels.glob(f"{package}-*.whl"))
    (folder / package / "index.html").write_text(f"<!DOCTYPE html>{''.join(links)}")
    return folder.as_uri()


def test_extra_packages_come_from_an_index_of_their_own(tmp_path: Path, index: Path) -> None:
    environment = {**os.environ, "PIP_NO_INDEX": "1"}
    made = image(tmp_path, "needed==1.0")
    folder = made.install(["--find-links", index.as_uri(), "wanted"], environment)
    assert (folder / "wanted.py").exists()


def test_a_quote_that_nothing_closes_is_told_in_one_line() -> None:
    with pytest.raises(SystemExit, match="CLEARML_EXTRA_PYTHON_PACKAGES: No closing quotation; "):
        script().words_of("kafka-python 'lz4")
    assert script().words_of("a \"b; python_version<'3.12'\"") == ["a", "b; python_version<'3.12'"]


@pytest.mark.parametrize("name", ["python", "triton"])
def test_the_lock_lies_beside_the_script(name: str) -> None:
    text = (SCRIPT.parent / name / "Dockerfile").read_text("utf-8")
    assert re.search(r"^COPY .+\.lock /opt/transformer-serving/image\.lock$", text, re.MULTILINE)
    assert re.search(
        r"^COPY .*docker/entrypoint\.py .*/opt/transformer-serving/$", text, re.MULTILINE
    )
