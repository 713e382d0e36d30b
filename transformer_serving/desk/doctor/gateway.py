"""The front door: whether it is ready, and whether it lets in who asks."""

from __future__ import annotations

from transformer_serving.desk.doctor.clearml import unreachable
from transformer_serving.desk.doctor.finding import Finding, Findings, failure, ok, skipped, warning
from transformer_serving.desk.doctor.http import Answer, ask
from transformer_serving.desk.doctor.subject import Subject
from transformer_serving.desk.http import FORBIDDEN, KEY_VARIABLE, UNAUTHORIZED, key_header

SERVE = "CLEARML_DEFAULT_BASE_SERVE_URL"


def check_gateway(subject: Subject) -> Findings:
    serve = subject.environment.get(SERVE)
    if not serve:
        yield skipped(f"no {SERVE}: give --env-file, or start a stack")
        return
    address = serve.rstrip("/").removesuffix("/serve")
    answer = ask(f"{address}/health/ready")
    if answer.status == 0:
        yield unreachable(subject, SERVE, address, answer, "the gateway")
    elif "ready" not in answer.json() and subject.running:
        yield failure(
            f"what answers at {address} is not the stack's gateway",
            "stop that program, or move all ports: transformer-serving down, then "
            "transformer-serving up --port-base N",
        )
    elif "ready" not in answer.json():
        yield skipped(
            f"what answers at {address} is not the gateway; clearml-serving's own app has no keys"
        )
    else:
        yield _ready(address, answer)
        yield _lets_in(subject, address)


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
            f"give --key or {KEY_VARIABLE}; one is made with transformer-serving keys add NAME",
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
            "give another key; transformer-serving keys list shows what each may ask",
        )
    return warning(
        "the gateway knows the key, which is for some endpoints or for /metrics only",
        "nothing, if that is meant; name one of its endpoints with --endpoint to look at it",
    )


def _is_let_in(answer: Answer) -> bool:
    """404: there is no such endpoint. One that is not ready is told with its row."""
    return answer.status in (200, 404) or "endpoint" in answer.json()
