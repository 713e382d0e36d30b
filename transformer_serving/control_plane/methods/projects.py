"""projects.*: folders of tasks and models, named by a path with slashes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from transformer_serving.control_plane.call import Call, Handler, get_all as answer_all
from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.query import Filters
from transformer_serving.control_plane.schema import (
    ARCHIVED,
    MIN_PROJECT_NAME,
    PROJECT_FIELDS,
    new_id,
    new_project,
    now,
    pick,
    tags,
)
from transformer_serving.control_plane.store import Document, Kind, Transaction
from transformer_serving.control_plane.tags import tag_filter

_FILTERS = Filters(
    patterns=("name", "basename", "description"),
    lists=("id", "tags", "system_tags", "user"),
    dates=("created", "last_update"),
    texts=("name", "id", "description"),
)
_HIDDEN = "hidden"


def create(call: Call) -> Document:
    name = _clean(call.text("name"))
    fields = pick(call.data, PROJECT_FIELDS) | {"name": name}
    with call.store.writing() as transaction:
        if _by_name(transaction, name):
            raise ApiError(ApiFailure.NOT_UNIQUE, "a project of this name exists")
        identity = _create_path(transaction, name)
        project = require(transaction, identity)
        transaction.put(Kind.PROJECT, project | fields)
    return {"id": identity}


def get_by_id(call: Call) -> Document:
    with call.store.reading() as transaction:
        return {"project": require(transaction, call.text("project"))}


def get_all(call: Call) -> Document:
    shown, below = shows(call), _below(call)

    def keep(project: Document) -> bool:
        return shown(project) and below(str(project["name"]))

    return answer_all(call, Kind.PROJECT, _FILTERS, keep)


def update(call: Call) -> Document:
    fields = pick(call.data, PROJECT_FIELDS)
    with call.store.writing() as transaction:
        project = require(transaction, call.text("project"))
        fields["last_update"] = now()
        if "name" in fields:
            fields["name"] = name = _clean(str(fields["name"]))
            fields["basename"] = name.rsplit("/", 1)[-1]
            _rename_all_within(transaction, project, name)
        transaction.put(Kind.PROJECT, project | fields)
    return {"updated": 1, "fields": fields}


def delete(call: Call) -> Document:
    identity, force = call.text("project"), call.flag("force")
    contents = call.flag("delete_contents")
    with call.store.writing() as transaction:
        project = require(transaction, identity)
        all_ids = [identity, *(str(one["id"]) for one in _own_within(transaction, project))]
        tasks = list(transaction.find(Kind.TASK, {"project": all_ids}))
        models = list(transaction.find(Kind.MODEL, {"project": all_ids}))
        if not force and any(ARCHIVED not in tags(task) for task in tasks):
            raise ApiError(ApiFailure.PROJECT_HAS_TASKS, "use force=true")
        if not force and any(ARCHIVED not in tags(model) for model in models):
            raise ApiError(ApiFailure.PROJECT_HAS_MODELS, "use force=true")
        for kind, documents in ((Kind.TASK, tasks), (Kind.MODEL, models)):
            _leave(transaction, kind, documents, contents)
        if contents:
            _forget(transaction, [str(task["id"]) for task in tasks])
        for one in all_ids:
            transaction.remove(Kind.PROJECT, one)
    return {
        "deleted": len(all_ids),
        "disassociated_tasks": 0 if contents else len(tasks),
        "deleted_tasks": len(tasks) if contents else 0,
        "deleted_models": len(models) if contents else 0,
        "urls": {},
    }


def _below(call: Call) -> Callable[[str], bool]:
    """The test of `parent` by a project's name: anywhere below one, or with `shallow_search` right
    below; without a parent all projects, or those at the top."""
    shallow, wanted = call.flag("shallow_search"), call.data.get("parent")
    if not wanted:
        return lambda name: not (shallow and "/" in name)
    test = tag_filter("parent", wanted if isinstance(wanted, list) else [wanted])
    with call.store.reading() as transaction:
        ids = _ids(transaction)

    def below(name: str) -> bool:
        parts = name.split("/")
        depths = range(len(parts) - 1 if shallow else 1, len(parts))
        above = ("/".join(parts[:depth]) for depth in depths)
        return test([ids[one] for one in above if one in ids])

    return below


def shows(call: Call) -> Callable[[Document], bool]:
    """Of projects and tasks: what is hidden is found by its id or when it is asked for."""
    hidden_too = call.flag("search_hidden") or bool(call.data.get("id"))
    return lambda document: hidden_too or _HIDDEN not in tags(document)


def require(transaction: Transaction, identity: str) -> Document:
    project = transaction.get(Kind.PROJECT, identity)
    if project is None:
        raise ApiError(ApiFailure.PROJECT_ID, data={"id": identity})
    return project


def touch(transaction: Transaction, identity: object) -> None:
    """Moves a project's last_update, which the SDK picks the newest of several projects by."""
    project = transaction.get(Kind.PROJECT, identity) if isinstance(identity, str) else None
    if project is not None:
        transaction.put(Kind.PROJECT, project | {"last_update": now()})


def _ids(transaction: Transaction) -> dict[str, str]:
    """Of all projects, by their names."""
    return {str(one["name"]): str(one["id"]) for one in transaction.find(Kind.PROJECT)}


def _within(transaction: Transaction, project: Document) -> list[Document]:
    """Its sub-projects of all depths, by their names: a database may hold some whose parent's id
    says otherwise."""
    start = f"{project['name']}/"
    return [one for one in transaction.find(Kind.PROJECT) if str(one["name"]).startswith(start)]


def _own_within(transaction: Transaction, project: Document) -> list[Document]:
    """Those sub-projects that nothing says are another's. Where an earlier kit renamed a project,
    its sub-projects have the name of before, which somebody may have given to a new one since.
    """
    ids = _ids(transaction)
    own, existing = {str(project["id"])}, set(ids.values())
    found = []
    for one in sorted(_within(transaction, project), key=lambda one: str(one["name"])):
        above = one.get("parent")
        if above not in existing:
            parts = str(one["name"]).split("/")
            names = ("/".join(parts[:depth]) for depth in range(len(parts) - 1, 0, -1))
            above = next(ids[name] for name in names if name in ids)
        if above in own:
            own.add(str(one["id"]))
            found.append(one)
    return found


def _rename_all_within(transaction: Transaction, project: Document, name: str) -> None:
    """Gives the sub-projects the names that go with a new one; refuses what ClearML refuses."""
    before = str(project["name"])
    if before.rpartition("/")[0] != name.rpartition("/")[0]:
        raise ApiError(ApiFailure.PROJECT_LOCATION, "only what follows the last '/' may change")
    if name == before:
        return
    for one in (project, *_within(transaction, project)):
        renamed = name + str(one["name"]).removeprefix(before)
        if _by_name(transaction, renamed):
            raise ApiError(ApiFailure.NOT_UNIQUE, "a project of this name exists")
        transaction.put(Kind.PROJECT, one | {"name": renamed, "last_update": now()})


def _leave(transaction: Transaction, kind: Kind, documents: list[Document], contents: bool) -> None:
    for document in documents:
        if contents:
            transaction.remove(kind, str(document["id"]))
        else:
            transaction.put(kind, document | {"project": None})


def _forget(transaction: Transaction, tasks: list[str]) -> None:
    """What stays elsewhere has them for a parent, or for what made it, no more."""
    for kind, field in ((Kind.TASK, "parent"), (Kind.MODEL, "task")):
        for document in list(transaction.find(kind, {field: tasks})):
            transaction.put(kind, document | {field: None, "last_change": now()})


def _create_path(transaction: Transaction, name: str) -> str:
    """Creates the project and the ancestors it lacks; returns the last one's id."""
    parts = name.split("/")
    parent: Document | None = None
    for depth in range(1, len(parts) + 1):
        path = "/".join(parts[:depth])
        project = _by_name(transaction, path)
        if project is None:
            project = new_project(new_id(), path)
            if parent is not None:
                project["parent"] = parent["id"]
            transaction.put(Kind.PROJECT, project)
        parent = project
    return str(parent["id"]) if parent else ""


def _by_name(transaction: Transaction, name: str) -> Document | None:
    return next(transaction.find(Kind.PROJECT, {"name": [name]}), None)


def _clean(name: str) -> str:
    cleaned = "/".join(part.strip() for part in name.split("/") if part.strip())
    if len(cleaned) < MIN_PROJECT_NAME:
        raise ApiError(
            ApiFailure.PROJECT_NAME,
            f"name: at least {MIN_PROJECT_NAME} letters, got {len(cleaned)}",
        )
    return cleaned


METHODS: Mapping[str, Handler] = {
    "projects.create": create,
    "projects.get_by_id": get_by_id,
    "projects.get_all": get_all,
    "projects.update": update,
    "projects.delete": delete,
}
