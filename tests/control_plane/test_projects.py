"""projects.*"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from transformer_serving.control_plane.integrity import DATABASE
from transformer_serving.control_plane.settings import ControlPlaneSettings

if TYPE_CHECKING:
    from tests.control_plane.conftest import ApiClient


def test_created_projects_are_found_by_their_escaped_name(api: ApiClient) -> None:
    identity = api.project("Transformer ONNX (1)")
    found = api.call(
        "projects.get_all", name="^Transformer\\ ONNX\\ \\(1\\)$", only_fields=["id", "name"]
    )
    assert found == {"projects": [{"id": identity, "name": "Transformer ONNX (1)"}]}


def test_a_path_creates_what_it_leads_through(api: ApiClient) -> None:
    identity = api.project(" Team A / Part B /Leaf")
    names = [p["name"] for p in api.call("projects.get_all", order_by=["name"])["projects"]]
    assert names == ["Team A", "Team A/Part B", "Team A/Part B/Leaf"]
    leaf = api.call("projects.get_by_id", project=identity)["project"]
    assert leaf["basename"] == "Leaf"
    assert api.call("projects.get_all", shallow_search=True)["projects"][0]["name"] == "Team A"


def test_a_name_is_taken_once(api: ApiClient) -> None:
    api.project("Taken")
    assert api.refusal("projects.create", name="Taken") == (400, 801)
    assert api.refusal("projects.create", name=" / a") == (400, 407)


def test_hidden_projects_show_when_asked_for(api: ApiClient) -> None:
    identity = api.call("projects.create", name="Hidden", system_tags=["hidden"])["id"]
    assert api.call("projects.get_all")["projects"] == []
    for asked in ({"search_hidden": True}, {"id": [identity]}):
        assert len(api.call("projects.get_all", **asked)["projects"]) == 1


def test_update(api: ApiClient) -> None:
    identity, other = api.project("First name"), api.project("Other name")
    answer = api.call("projects.update", project=identity, name="Second name", description="d")
    assert answer["updated"] == 1
    project = api.call("projects.get_by_id", project=identity)["project"]
    assert (project["name"], project["basename"]) == ("Second name", "Second name")
    assert api.refusal("projects.update", project=other, name="Second name") == (400, 801)


def names(api: ApiClient) -> list[str]:
    return [p["name"] for p in api.call("projects.get_all", order_by=["name"])["projects"]]


def test_projects_below_others(api: ApiClient) -> None:
    ids = {name: api.project(name) for name in ("Team A", "Team B", "Team A/One/Leaf", "Team AB/x")}

    def found(*parents: object, **fields: object) -> list[str]:
        ask = {"parent": [ids.get(str(one), one) for one in parents], "order_by": ["name"]}
        return [p["name"] for p in api.call("projects.get_all", **ask, **fields)["projects"]]

    assert found("Team A") == ["Team A/One", "Team A/One/Leaf"]
    assert found("Team A", shallow_search=True) == ["Team A/One"]
    assert found("Team B") == []
    assert (
        found(shallow_search=True)
        == found(None)
        == found(None, shallow_search=True)
        == ["Team A", "Team AB", "Team B"]
    )
    assert found() == ["Team A", "Team A/One", "Team A/One/Leaf", "Team AB", "Team AB/x", "Team B"]
    below = api.call("projects.get_all", parent=ids["Team A"])["projects"]
    assert len(below) == 2


def test_sub_projects_are_renamed_with_their_project(api: ApiClient) -> None:
    for name in ("Team A/One/Leaf", "Team A/Two", "Team AB/One", "Team C"):
        api.project(name)
    team = api.call("projects.get_all", name="^Team A$")["projects"][0]["id"]
    api.call("projects.update", project=team, name="Team B")
    after = ["Team AB", "Team AB/One", "Team B", "Team B/One", "Team B/One/Leaf", "Team B/Two"]
    assert names(api) == [*after, "Team C"]
    one = api.call("projects.get_all", name="^Team B/One$")["projects"][0]
    assert one["basename"] == "One"
    api.call("projects.update", project=one["id"], name="Team B/First", description="d")
    assert names(api)[3:5] == ["Team B/First", "Team B/First/Leaf"]
    api.call("projects.update", project=one["id"], name="Team B/First")


def test_a_rename_to_another_place_or_onto_another_is_refused_as_a_whole(
    api: ApiClient, settings: ControlPlaneSettings
) -> None:
    api.project("Team A/One")
    team = api.call("projects.get_all", name="^Team A$")["projects"][0]["id"]
    for elsewhere in ("Other/Team A", "Team A/One/Team A"):
        assert api.refusal("projects.update", project=team, name=elsewhere) == (400, 408)
    # As earlier kits left one when they deleted its project.
    with closing(sqlite3.connect(settings.data / DATABASE)) as connection, connection:
        document = {"id": "left", "name": "Team B/One"}
        connection.execute("INSERT INTO project VALUES ('left', ?)", (json.dumps(document),))
    assert api.refusal("projects.update", project=team, name="Team B") == (400, 801)
    assert names(api) == ["Team A", "Team A/One", "Team B/One"]


@pytest.mark.parametrize("contents", [True, False])
def test_sub_projects_are_deleted_with_their_project(api: ApiClient, contents: bool) -> None:
    leaf, other = api.project("Team A/One/Leaf"), api.project("Team AB")
    task, stays = api.task(project=leaf), api.task(project=other)
    child, made = api.task(project=other, parent=task), api.model(project=other, task=task)
    team = api.call("projects.get_all", name="^Team A$")["projects"][0]["id"]
    assert api.refusal("projects.delete", project=team) == (400, 402)
    answer = api.call("projects.delete", project=team, force=True, delete_contents=contents)
    counted = (answer["deleted"], answer["deleted_tasks"], answer["disassociated_tasks"])
    assert counted == ((3, 1, 0) if contents else (3, 0, 1))
    assert names(api) == ["Team AB"]
    assert api.get_task(stays)["project"] == other
    kept = None if contents else task
    assert (api.get_task(child)["parent"], api.get_model(made)["task"]) == (kept, kept)
    if not contents:
        assert api.get_task(task)["project"] is None


@pytest.mark.parametrize("contents", [True, False])
def test_what_a_rename_left_behind_stays_when_another_of_the_name_is_deleted(
    api: ApiClient, settings: ControlPlaneSettings, contents: bool
) -> None:
    """Earlier kits renamed a project alone."""
    task = api.task(project=api.project("Team A/One/Leaf"))
    team = api.call("projects.get_all", name="^Team A$")["projects"][0]["id"]
    with closing(sqlite3.connect(settings.data / DATABASE)) as connection, connection:
        connection.execute(
            "UPDATE project SET doc = json_set(doc, '$.name', 'Team B') WHERE id = ?", (team,)
        )
        # Of which nothing says whose they are but the names.
        for identity, name in (("1", "Team A/One/Old"), ("2", "Team A/Gone/Old")):
            document = {"id": identity, "name": name, "parent": "gone"}
            row = (identity, json.dumps(document))
            connection.execute("INSERT INTO project VALUES (?, ?)", row)
    new = api.project("Team A")
    api.project("Team A/Two/Leaf")
    ask = {"project": new, "force": True, "delete_contents": contents}
    assert api.call("projects.delete", **ask)["deleted"] == 4
    assert names(api) == ["Team A/One", "Team A/One/Leaf", "Team A/One/Old", "Team B"]
    assert api.get_task(task)["project"]


@pytest.mark.parametrize("contents", [True, False])
def test_delete(api: ApiClient, contents: bool) -> None:
    identity = api.project()
    task, model = api.task(project=identity), api.model(project=identity)
    assert api.refusal("projects.delete", project=identity) == (400, 402)
    answer = api.call("projects.delete", project=identity, force=True, delete_contents=contents)
    assert answer["deleted"] == 1
    assert api.refusal("projects.get_by_id", project=identity) == (400, 401)
    if contents:
        assert (answer["deleted_tasks"], answer["deleted_models"]) == (1, 1)
        assert api.refusal("models.get_by_id", model=model) == (400, 201)
    else:
        assert answer["disassociated_tasks"] == 1
        assert api.get_task(task)["project"] is None
