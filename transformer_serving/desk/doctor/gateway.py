"""The front door: whether it is ready, and whether it lets in who asks."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.doctor.clearml import unnamed, unreachable
from transformer_serving.desk.doctor.containers import NO_STACK, check_containers
from transformer_serving.desk.doctor.finding import Finding, Findings, failure, ok, skipped, warning
from transformer_serving.desk.doctor.http import Answer, ask
from transformer_serving.desk.doctor.subject import Subject
from transformer_serving.desk.http import FORBIDDEN, KEY_VARIABLE, UNAUTHORIZED, key_header

SERVE = "CLEARML_DEFAULT_BASE_SERVE_URL"
# Of which compose/compose.yaml makes it.
BIND, PORT = "TRANSFORMER_SERVING_BIND", "TRANSFORMER_SERVING_PORT"
TLS_FOLDER = "TRANSFORMER_SERVING_TLS_FOLDER"
_CONNECT_S = 4.0


def check_gateway(subject: Subject) -> Findings:
    serve = subject.environment.get(SERVE)
    published = None if serve else _published(subject)
    if not serve and not published:
        yield unnamed(subject, SERVE)
        return
    address = published or str(serve).rstrip("/").removesuffix("/serve")
    answer = ask(f"{address}/health/ready")
    if answer.distrusted and published:
        yield _distrusted(address, answer)
    elif answer.status == 0 and published and not _starts_here(subject, published):
        yield skipped(
            f"{NO_STACK} of this folder or COMPOSE_FILE runs here, and nothing listens at "
            f"{published}, where compose would publish the gateway; name that of another machine "
            f"in {SERVE}"
        )
    elif answer.status == 0:
        name = PORT if published else SERVE
        yield unreachable(subject, name, address, answer, "the gateway", "inference")
    elif "ready" not in answer.json() and subject.running:
        yield failure(
            f"what answers at {address} is not the stack's gateway",
            f"stop that program, or move all ports: {command_line('down', subject.state)}, then "
            f"{command_line('up --port-base N', subject.state)}",
        )
    elif "ready" not in answer.json():
        yield skipped(
            f"what answers at {address} is not the gateway; clearml-serving's own app has no keys"
        )
    else:
        yield _ready(address, answer)
        yield _lets_in(subject, address)


def _published(subject: Subject) -> str | None:
    """Where compose publishes it by the variables of --env-file, None where they do not say."""
    values = subject.environment
    if not subject.from_file or not (values.get(BIND) or values.get(PORT)):
        return None
    scheme = "https" if values.get(TLS_FOLDER) else "http"
    return f"{scheme}://{values.get(BIND) or '127.0.0.1'}:{values.get(PORT) or '8080'}"


def _starts_here(subject: Subject, address: str) -> bool:
    """docker/example.env has an address also where nothing was started.

    Docker itself listens for a container that does not, in whatever folder that was started.
    """
    parts = urlsplit(address)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), _CONNECT_S).close()
    except (OSError, ValueError):
        return any(said.why != NO_STACK for said in check_containers(subject))
    return True


def _distrusted(address: str, answer: Answer) -> Finding:
    """A certificate is seldom made for the address that is published."""
    return warning(
        f"no TLS with the gateway at {address}: {answer.error}",
        f"set {SERVE} to https://HOST:PORT/serve, HOST as the certificate has it, and "
        "SSL_CERT_FILE to an authority of your own; where callers show certificates, nothing",
    )


def _ready(address: str, answer: Answer) -> Finding:
    if answer.json()["ready"]:
        return ok(f"the gateway is ready at {address}")
    return warning(
        f"the gateway at {address} is not ready: {answer.json().get('reason')}",
        "wait; if it stays so, see its log",
    )


def _lets_in(subject: Subject, address: str) -> Finding:
    """By the health of the endpoints: all, or the one of --endpoint."""
    url = f"{address}/health/endpoints"
    if subject.endpoint is not None:
        url = f"{url}/{subject.endpoint}"
    answer = ask(url)
    if _is_let_in(answer):
        return ok("the gateway has no keys: everybody who reaches it is let in")
    if answer.status == UNAUTHORIZED and subject.key:
        answer = ask(url, key_header(subject.key))
    status = answer.status
    if status == UNAUTHORIZED:
        why = "does not know the key" if subject.key else "has keys, and none was given"
        return failure(
            f"the gateway {why}: requests get 401",
            f"give --key or {KEY_VARIABLE}; one is made with {command_line('keys add NAME')}",
        )
    if _is_let_in(answer):
        return ok("the gateway lets the key in")
    if status != FORBIDDEN:
        return failure(
            f"whom the gateway lets in is not known: {url} "
            + (f"answers {status}" if status else "does not answer"),
            "wait until it is ready; if it stays so, see its log",
        )
    if subject.endpoint is not None:
        return failure(
            f"the key may not ask {subject.endpoint}: requests get 403",
            f"give another key; {command_line('keys list')} shows what each may ask",
        )
    return warning(
        "the gateway knows the key, which is for some endpoints or for /metrics only",
        "nothing, if that is meant; name one of its endpoints with --endpoint to look at it",
    )


def _is_let_in(answer: Answer) -> bool:
    """404: there is no such endpoint. One that is not ready is told with its row."""
    return answer.status in (200, 404) or "endpoint" in answer.json()
