"""What each image does before its program: secrets from files, required variables, extra packages.

It runs on every Python that an image has and needs nothing but the standard library. The program
replaces this process, so that it gets the signals.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import ipaddress
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

# NAME_FILE names a file that holds NAME, as docker and compose secrets come.
SECRETS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AZURE_STORAGE_KEY",
    "CLEARML_API_ACCESS_KEY",
    "CLEARML_API_SECRET_KEY",
    "CLEARML_SERVING_TASK_ID",
    "OTEL_EXPORTER_OTLP_HEADERS",
)
# Without these nothing can be served; the others have defaults.
REQUIRED = "TRANSFORMER_SERVING_REQUIRED"
API_HOST = "CLEARML_API_HOST"
WEB_HOST = "CLEARML_WEB_HOST"
FILES_HOST = "CLEARML_FILES_HOST"
# Of these forms of the API's address ClearML's SDK knows by itself where the rest of the server is.
TELLING = ("://api.", ":8008/")
# What compose's own control plane made lies here for good, and is for that one: for the API host
# that this variable says, where it is set. The program has the variable where that one is asked.
LOCAL_FOLDER = Path("/run/local")
LOCAL_API = "TRANSFORMER_SERVING_LOCAL_API"
EXTRA_PACKAGES = "CLEARML_EXTRA_PYTHON_PACKAGES"
TRUSTED_KEYS = "TRANSFORMER_SERVING_TRUSTED_KEYS"
PACKAGES_FOLDER = Path("/var/lib/extra-packages")
# What the image was installed from.
LOCK = Path(__file__).with_name("image.lock")
LISTENS_S = 5.0
# Kubernetes sets it in every container, and our chart that one beside it; a pod without the latter
# is the official chart's, with the values of kubernetes/clearml-serving-values.yaml.
IN_A_POD = "KUBERNETES_SERVICE_HOST"
OUR_CHART = "TRANSFORMER_SERVING_OUR_CHART"
# Docker's client gives its own proxy to every container. These are never beyond one: the container
# itself, compose's control plane, the machine, a name without a dot that one of ASKED has, and in
# a pod what ends as a Service's names do.
NEAR = ("127.0.0.1", "localhost", "control-plane", "host.docker.internal")
SERVICES = (".svc", ".cluster.local")
ASKED = (
    API_HOST,
    FILES_HOST,
    WEB_HOST,
    "CLEARML_DEFAULT_BASE_SERVE_URL",
    "CLEARML_DEFAULT_TRITON_GRPC_ADDR",
    "TRANSFORMER_SERVING_TRITON_HTTP",
    "TRANSFORMER_SERVING_TRITON_GRPC",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)
NO_PROXY = ("no_proxy", "NO_PROXY")
# What mends a missing variable, and an address of the container itself: in compose, in a pod of our
# chart and in one of the official chart.
GIVE_IT = (
    "put it into the file of --env-file (every variable stands in docker/example.env), or bring "
    f"the control plane along with --profile local and without {API_HOST}"
)
GIVE_IT_IN_A_POD = (
    "put it into the chart's values, hosts and CLEARML_SERVING_TASK_ID below clearml and keys "
    "below credentials, or into the Secret that existingSecret names; or bring the control plane "
    "along with local.enabled=true and an empty clearml"
)
GIVE_IT_TO_THE_OFFICIAL_CHART = (
    "put the serving task's id into clearml.servingTaskId of the official chart's values, and the "
    "keys as access-key and secret-key into the Secret that existingAdditionalConfigsSecret names, "
    "as kubernetes/clearml-serving-values.yaml has them"
)
GIVE_THE_HOST = (
    "give the server's own in the file of --env-file, and run docker compose in a shell that has "
    "no CLEARML_ variables, since they come before that file's"
)
GIVE_THE_HOST_IN_A_POD = f"give the server's own in the chart's clearml.{API_HOST}"
GIVE_THE_HOST_TO_THE_OFFICIAL_CHART = (
    "give the server's own in clearml.apiHost of the official chart's values"
)


def main() -> None:
    # A pod has no init: the kernel gives its first process no signal without a handler, and
    # packages may take minutes to come. The program begins without this one.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    environment = {name: value for name, value in os.environ.items() if value}
    read_secrets(environment)
    required = environment.pop(REQUIRED, "").split()
    give_it, give_the_host = advice(environment)
    missing = [name for name in required if name not in environment]
    if missing:
        sys.exit(f"error: {', '.join(missing)} not set: {give_it}")
    if API_HOST in required and not has_scheme(environment[API_HOST]):
        sys.exit(f"error: {API_HOST} must be http:// or https:// and a host: {give_the_host}")
    if API_HOST in required and leads_nowhere(environment[API_HOST]):
        sys.exit(
            f"error: {API_HOST} is an address of the container itself, where nothing listens: "
            f"{give_the_host}"
        )
    leave_out_proxies(environment)
    extra = environment.get(EXTRA_PACKAGES)
    if extra:
        packages = install(words_of(extra), environment)
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [environment.get("PYTHONPATH"), str(packages)])
        )
    os.execvpe(sys.argv[1], sys.argv[1:], environment)


def advice(environment: dict[str, str]) -> tuple[str, str]:
    """Where a missing variable, and ClearML's address, are to be given."""
    is_ours = environment.pop(OUR_CHART, None) is not None
    if IN_A_POD not in environment:
        return GIVE_IT, GIVE_THE_HOST
    if is_ours:
        return GIVE_IT_IN_A_POD, GIVE_THE_HOST_IN_A_POD
    return GIVE_IT_TO_THE_OFFICIAL_CHART, GIVE_THE_HOST_TO_THE_OFFICIAL_CHART


def read_secrets(environment: dict[str, str]) -> None:
    """Put what NAME_FILE holds into NAME; NAME itself wins. Ends for an unreadable file."""
    asked = environment.get(API_HOST, "").rstrip("/")
    is_local = environment.get(LOCAL_API, asked) == asked
    if not is_local:
        leave_out_local_hosts(environment, environment.pop(LOCAL_API))
    for name in SECRETS:
        path = environment.pop(f"{name}_FILE", None)
        if path is None or name in environment:
            continue
        if not is_local and LOCAL_FOLDER in Path(path).parents:
            continue
        try:
            value = Path(path).read_text("utf-8").strip()
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
            sys.exit(f"error: {name}_FILE {path}: {reason}; user {os.getuid()} must be able to")
        if value:
            environment[name] = value


def leave_out_local_hosts(environment: dict[str, str], local: str) -> None:
    """Compose says its own control plane where nobody names the web or file server. That of another
    API is elsewhere: files of an address that is not its file server's are asked for without keys.
    """
    unnamed = [name for name in (WEB_HOST, FILES_HOST) if environment.get(name) == local]
    asked = environment.get(API_HOST, "").rstrip("/") + "/"
    if WEB_HOST not in unnamed or any(form in asked for form in TELLING):
        for name in unnamed:
            del environment[name]


def has_scheme(address: str) -> bool:
    """Whether it is an address that HTTP can ask at all, which `api.example:8008` is not."""
    try:
        url = urlsplit(address)
    except ValueError:
        return False
    return url.scheme in ("http", "https") and bool(url.hostname)


def leave_out_proxies(environment: dict[str, str]) -> None:
    """Where there is a proxy, name what is near among what is asked without it.

    It would get the keys with each question, and cannot know the names of this network.
    """
    proxies = {name for name in environment if name.lower().endswith("_proxy")}
    if not proxies - set(NO_PROXY):
        return
    # Of two spellings all tools take the small one first.
    left_out = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    hosts = [host.strip() for host in left_out.split(",") if host.strip()]
    if "*" not in hosts:
        near = [*NEAR, *(SERVICES if IN_A_POD in environment else ())]
        asked = ",".join(environment.get(name, "") for name in ASKED)
        near += filter(None, map(short_name, asked.split(",")))
        hosts += [host for host in dict.fromkeys(near) if host not in hosts]
    environment |= dict.fromkeys(NO_PROXY, ",".join(hosts))


def short_name(address: str) -> str | None:
    """Its host, where that is a name that only this network can know; Triton's has no scheme."""
    address = address.strip()
    if address.startswith("unix:"):
        return None
    try:
        host = urlsplit(address if "://" in address else f"//{address}").hostname or ""
    except ValueError:
        return None
    return host if host and not set(host) & set(".:") else None


def leads_nowhere(address: str) -> bool:
    """Whether it is a loopback address that refuses, as that of a desk does in a container.

    In the host's network, and beside a proxy in the same pod, something listens there.
    """
    try:
        url = urlsplit(address)
        host, port = url.hostname or "", url.port or {"https": 443}.get(url.scheme, 80)
        if host != "localhost" and not ipaddress.ip_address(host).is_loopback:
            return False
        socket.create_connection((host, port), timeout=LISTENS_S).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        # A name, or what only the SDK can judge.
        return False
    return False


def words_of(extra: str) -> list[str]:
    """As a shell takes them apart. Ends where a quote has no other."""
    try:
        return shlex.split(extra)
    except ValueError as error:
        sys.exit(
            f"error: {EXTRA_PACKAGES}: {error}; it is read as a shell reads words: close the "
            "quote, or put the word that holds it between quotes of the other kind"
        )


def install(wanted: list[str], environment: dict[str, str]) -> Path:
    """Install into the volume, once for all containers and restarts; the folder to import from.

    It comes before the image's own packages, so that what both have must be of the same version:
    another image or Python has a folder of its own. So have other trusted keys: code of bundles
    that are not trusted any more may have written into the one before.
    """
    trusted = environment.get(TRUSTED_KEYS, "").split()
    made_for = [*wanted, str(sys.implementation.cache_tag), LOCK.read_text("utf-8"), *trusted]
    name = hashlib.sha256("\n".join(made_for).encode()).hexdigest()[:16]
    folder = PACKAGES_FOLDER / name
    try:
        with (PACKAGES_FOLDER / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                install_aside(wanted, PACKAGES_FOLDER / f".{name}", environment).rename(folder)
    except OSError as error:
        sys.exit(f"error: {EXTRA_PACKAGES} needs a volume at {PACKAGES_FOLDER}: {error.strerror}")
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"error: {EXTRA_PACKAGES}: pip ended with {error.returncode}; see its lines above. "
            "Where they want another version of what the image has, build an image of your own; "
            f"where no room is left, make some in the volume of {PACKAGES_FOLDER}"
        )
    return folder


def install_aside(wanted: list[str], aside: Path, environment: dict[str, str]) -> Path:
    """pip unpacks and installs all in its temporary folder before it moves it. It gets one in the
    volume: /tmp is small, counts as memory and runs no program.
    """
    scratch = aside.with_name(f"{aside.name}.tmp")
    # Of a container that was killed meanwhile.
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        command = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--quiet"]
        command += ["--disable-pip-version-check", "--upgrade", "--target", str(aside)]
        words, variables = without_indexes(wanted, scratch / "indexes")
        command += ["--constraint", str(LOCK), *words]
        environment = {**environment, **variables, "TMPDIR": str(scratch)}
        subprocess.run(command, check=True, env=environment)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return aside


def without_indexes(wanted: list[str], file: Path) -> tuple[list[str], dict[str, str]]:
    """The other words, and variables of pip's: a password in an index's address is nothing for a
    command line, which every user of the host reads.

    A line of a file of requirements is one more index, but the main one's takes all others away;
    a variable takes the place of what pip.conf says, as on the command line only the main one does.
    """
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("-i", "--index-url", "--pypi-url")
    options.add_argument("--extra-index-url", action="append", default=[])
    options.add_argument("-f", "--find-links", action="append", default=[])
    found, words = options.parse_known_args(wanted)
    lines = [f"--extra-index-url {shlex.quote(index)}" for index in found.extra_index_url]
    lines += [f"--find-links {shlex.quote(place)}" for place in found.find_links]
    if lines:
        file.touch(mode=0o600)
        file.write_text("\n".join(lines), "utf-8")
        words += ["--requirement", str(file)]
    return words, {} if found.index_url is None else {"PIP_INDEX_URL": found.index_url}


if __name__ == "__main__":
    main()
