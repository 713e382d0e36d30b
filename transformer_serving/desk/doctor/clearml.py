"""Checks of the ClearML server from this machine: API, credentials, file server, clock.

Tested by tests/doctor/test_faults.py.
"""

from __future__ import annotations

import base64
from urllib.parse import urlsplit

from transformer_serving.contract.worker.sdk_patience import NO_API_FIX
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.compose.variables import HOST_NAME
from transformer_serving.desk.doctor.finding import Finding, Findings, failure, ok, skipped, warning
from transformer_serving.desk.doctor.http import Answer, ask
from transformer_serving.desk.doctor.subject import Subject
from transformer_serving.desk.http import shown

API, FILES = "CLEARML_API_HOST", "CLEARML_FILES_HOST"
ACCESS, SECRET = "CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY"
# In brackets: compose prefers a shell's variables to those of its file.
OF_LOCAL_PROFILE = (
    "server=$(docker compose -f compose/compose.yaml exec -T control-plane python3 -m "
    'transformer_serving.desk.local.container env) && eval "$server"'
)
_ILL = 500
_REFUSED = (401, 403)
_SEE_LOG = "the API server is ill: see its log, and whether its database runs and has room"
# Tokens and pre-signed addresses are refused from about here on.
_SKEW_WARNING_S, _SKEW_FAILURE_S = 5.0, 60.0


def check_api(subject: Subject) -> Findings:
    host = subject.environment.get(API)
    if not host:
        yield _unnamed_api(subject)
        return
    answer = _ping(host)
    if answer.status == 0:
        yield unreachable(subject, API, host, answer)
    elif answer.status < _ILL and _is_api(answer):
        yield ok(f"the ClearML API answers at {host}")
    else:
        yield _no_api(shown(host), answer)


def _no_api(host: str, answer: Answer) -> Finding:
    if _is_api(answer):
        return failure(f"the ClearML API at {host} answers {answer.status}", _SEE_LOG)
    why = f"{host} answers {answer.status}, but not as the ClearML API"
    if answer.status >= _ILL:
        return failure(
            why, "start the API server; a proxy before it has nothing to pass the request to"
        )
    if answer.status in _REFUSED:
        return failure(
            why,
            f"have the proxy before the API let this machine in, or correct {API} if it is another "
            "server's",
        )
    return failure(why, NO_API_FIX)


def _ping(host: str) -> Answer:
    return ask(f"{host.rstrip('/')}/debug.ping")


def _is_api(answer: Answer) -> bool:
    return "meta" in answer.json()


def unnamed(subject: Subject, name: str) -> Finding:
    """What is said where the variable `name` has no address."""
    if not subject.from_file:
        return skipped(f"no {name}: give --env-file, or start a stack")
    return skipped(f"neither the file nor the shell has {name}")


def _unnamed_api(subject: Subject) -> Finding:
    finding = unnamed(subject, API)
    if not subject.from_file:
        return finding
    doctor = command_line("doctor --env-file docker/example.env")
    return skipped(
        f"{finding.why}; where the local profile runs, ask so: ({OF_LOCAL_PROFILE} && {doctor})"
    )


def unreachable(
    subject: Subject,
    name: str,
    host: str,
    answer: Answer,
    what: str = "the ClearML server",
    part: str = "control-plane",
) -> Finding:
    """What is said of an address, that of the variable `name`, where nothing answers; `part` is
    what answers there in an embedded stack, whose addresses are no variables of the shell."""
    if subject.absence is not None:
        return skipped(str(subject.absence))
    server, host = _name_of(host), shown(host)
    if subject.running:
        log = command_line(f"logs {part}", subject.state)
        return failure(f"{name} {host} is not reachable: {answer.error}", f"see '{log}'")
    is_inside = server == HOST_NAME or ("." not in server and server != "localhost")
    if answer.unresolved and is_inside:
        return warning(
            f"{name} {host} is a name inside a container network, not known to this machine",
            "nothing, if only containers use it; else give an address that both can reach",
        )
    return failure(
        f"{name} {host} is not reachable: {answer.error}",
        f"start {what} or correct {name}; from here: curl {host}",
    )


def _name_of(host: str) -> str:
    try:
        return urlsplit(host).hostname or ""
    except ValueError:  # it is no address
        return ""


def check_credentials(subject: Subject) -> Findings:
    values = [subject.environment.get(name) for name in (API, ACCESS, SECRET)]
    host, access, secret = values
    if not host:
        yield unnamed(subject, API)
        return
    if not access or not secret:
        yield _no_keys(subject, ACCESS if not access else SECRET)
        return
    login = base64.b64encode(f"{access}:{secret}".encode()).decode()
    answer = ask(f"{host.rstrip('/')}/auth.login", {"Authorization": f"Basic {login}"})
    if answer.status == 0 or not _is_api(answer):
        yield skipped("the API does not answer")
    elif answer.status == 200 and (answer.json().get("data") or {}).get("token"):
        yield ok("the API accepts the credentials")
    elif answer.status not in _REFUSED:
        yield failure(f"the API answers {answer.status} to a login", _SEE_LOG)
    else:
        yield failure(
            f"the API refuses the credentials with {answer.status}",
            f"make new keys in the web app (Settings, Workspace) and set {ACCESS}, {SECRET}",
        )


def _no_keys(subject: Subject, missing: str) -> Finding:
    if not subject.from_file:
        return failure(
            f"{missing} is not set", f"make keys in the web app and set {ACCESS}, {SECRET}"
        )
    return warning(
        f"neither the file nor the shell has {missing}",
        f"make keys in the web app and set {ACCESS}, {SECRET}; where compose/secrets.yaml gives "
        "them to the containers, export them here to have them tried",
    )


def check_files(subject: Subject) -> Findings:
    host = subject.environment.get(FILES)
    if not host:
        yield unnamed(subject, FILES)
    elif not host.startswith(("http://", "https://")):
        yield skipped(
            f"{urlsplit(host).scheme or 'a folder'}: is object storage, which is not asked"
        )
    else:
        yield _files(subject, host, ask(f"{host.rstrip('/')}/"))


def _files(subject: Subject, host: str, answer: Answer) -> Finding:
    if answer.status == 0:
        return unreachable(subject, FILES, host, answer)
    # Any other answer is the file server's own: it has nothing to show at its root.
    if answer.status >= 500:
        return failure(
            f"the file server {host} answers {answer.status}",
            "start the file server; a proxy before it has nothing to pass the request to",
        )
    return ok(f"the file server answers at {host}")


def check_clock(subject: Subject) -> Findings:
    host = subject.environment.get(API)
    ahead = _ping(host).clock_ahead_s() if host else None
    if ahead is None:
        yield skipped("no answer of the API with a date")
        return
    why = f"the API's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this one"
    fix = "set both clocks by NTP: timedatectl set-ntp true"
    if abs(ahead) > _SKEW_FAILURE_S:
        yield failure(why, fix)
    elif abs(ahead) > _SKEW_WARNING_S:
        yield warning(why, fix)
    else:
        yield ok("the clocks agree")
