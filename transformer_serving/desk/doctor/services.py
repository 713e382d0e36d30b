"""What the embedded stack's serving service leads to, and what waits in one that is not served.

Tested by tests/doctor/test_services.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from transformer_serving.desk.clearml_tools.cli import no_route
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.doctor.finding import Finding, Findings, ok, skipped, warning
from transformer_serving.desk.doctor.subject import Subject
from transformer_serving.desk.local.services import Route, Services, Unserved, read_services
from transformer_serving.gateway.settings import GENERATE_ENDPOINT, ROOT_ENDPOINT


def check_services(subject: Subject) -> Findings:
    if subject.record is None:
        yield skipped("no embedded stack is looked at")
        return
    if subject.absence is not None and not subject.left_behind:
        yield skipped(str(subject.absence))
        return
    services = read_services(subject.record)
    if services is None:
        yield skipped("the embedded control plane does not tell its serving services")
        return
    found = [
        *(_unserved(service, subject) for service in services.unserved),
        *_of_routes(services),
        *_of_settings(services, subject.started_with),
    ]
    yield from found or [ok("what leads to an endpoint leads to one that is there")]


def why_not_of_controller(subject: Subject) -> str | None:
    """Where the endpoint that is looked at is served and no controller has anything of it."""
    services = read_services(subject.record) if subject.record is not None else None
    if services is None:
        return None
    if subject.endpoint in services.without_triton:
        return f"the engine of '{subject.endpoint}' is not Triton: the controller has nothing of it"
    if any(route.endpoint == subject.endpoint for route in services.routes):
        return (
            f"'{subject.endpoint}' is a canary route: 'services' tells where it leads, --endpoint "
            "with the name of what it leads to looks at that"
        )
    return None


def _unserved(service: Unserved, subject: Subject) -> Finding:
    names = ", ".join(service.endpoints)
    return warning(
        f"serving service '{service.name}' ({service.id}) has endpoints that nobody serves: "
        f"{names}; the stack serves {subject.environment.get('CLEARML_SERVING_TASK_ID')} alone",
        f'eval "$({command_line("env", subject.state)})", then add them there: clearml-serving '
        f'--id "$CLEARML_SERVING_TASK_ID" model add …; and take them from the other: '
        f"clearml-serving --id {service.id} model remove --endpoint NAME",
    )


def _of_routes(services: Services) -> Findings:
    for route in services.routes:
        yield from _of_route(route, is_endpoint=route.endpoint in services.endpoints)


def _of_route(route: Route, *, is_endpoint: bool = False) -> Findings:
    service = '"$CLEARML_SERVING_TASK_ID"'
    end = f"clearml-serving --id {service} model remove --endpoint {route.endpoint}"
    if is_endpoint:
        # Which `model remove` would take in its place.
        end = no_route(service, route.endpoint)
    again = f"end it, {end}, and add it again with endpoints that are there, and weights above 0"
    if not route.leads_somewhere:
        yield warning(f"canary route {route.endpoint} leads nowhere: {_why_nowhere(route)}", again)
        return
    for arm in (arm for arm in route.arms if not arm.is_there):
        yield warning(
            f"canary route {route.endpoint} names {arm.endpoint}, which is not there: its share, "
            f"weight {arm.weight:g}, goes to the others",
            f"add endpoint {arm.endpoint}; or {again}",
        )


def _why_nowhere(route: Route) -> str:
    there = [arm.endpoint for arm in route.arms if arm.is_there]
    if there:
        return f"{', '.join(there)}: there, and without a weight"
    if route.arms:
        return f"{', '.join(arm.endpoint for arm in route.arms)}: none is there"
    if route.prefix:
        return f"no endpoint begins with {route.prefix}"
    return "it has a prefix beside its endpoints, or not one number as weight for each of them"


def _of_settings(services: Services, started_with: Mapping[str, str]) -> Findings:
    there = {*services.endpoints, *(route.endpoint for route in services.routes)}
    for setting in (ROOT_ENDPOINT, GENERATE_ENDPOINT):
        named = started_with.get(setting.name, "").rstrip("/")
        if named and named not in there:
            yield warning(
                f"{setting.name} names {named}, and no such endpoint is there: 404",
                f"there are: {', '.join(sorted(there)) or 'none'}; deploy it, or name another one "
                "and start the stack again",
            )
