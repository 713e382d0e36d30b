"""What endpoints say of themselves."""

from __future__ import annotations

import orjson
import pytest

from tests.gateway.spoken import OLDER, OTHER, SpokenDoor
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.heads import TASKS
from transformer_serving.contract.keys import Key, now
from transformer_serving.gateway.requested_endpoint import RequestedEndpoint


async def test_a_card_tells_the_form_and_is_json() -> None:
    cards = SpokenDoor().app._cards
    card = await cards.of(RequestedEndpoint("zero-shot-classification", None))
    assert card["task"] == "zero-shot-classification"
    assert [field["name"] for field in card["fields"]] == ["text"]
    assert "candidate_labels" in card["beside"]
    assert {"name": "multi_label", "wanted": "true or false", "default": False}.items() <= next(
        row for row in card["parameters"] if row["name"] == "multi_label"
    ).items()
    assert "hf.inference" in card["operations"]
    assert orjson.loads(orjson.dumps(card)) == card


async def test_all_are_those_of_ours_that_say_something() -> None:
    cards = SpokenDoor().app._cards
    assert set(await cards.all(None)) == {*TASKS, "rerank/2"}
    bound = Key("bound", "0" * 64, now(), ("rerank/2", "fill-mask", OLDER, "nobody"))
    assert set(await cards.all(bound)) == {"rerank/2", "fill-mask"}


@pytest.mark.parametrize(
    ("name", "code"), [(OLDER, "impossible"), (OTHER, "impossible"), ("no", "unknown_endpoint")]
)
async def test_who_says_nothing_is_told_apart(name: str, code: str) -> None:
    with pytest.raises(ServingError) as refused:
        await SpokenDoor().app._cards.of(RequestedEndpoint(name, None))
    assert refused.value.kind.code == code


async def test_a_canarys_name_has_no_card_but_stands_for_several() -> None:
    door = SpokenDoor()
    door.processor._canary_route["split"] = {"endpoints": ["rerank", "rerank/2"]}
    cards, target = door.app._cards, RequestedEndpoint("split", None)
    assert list(await cards.urls_of(target)) == ["rerank", "rerank/2"]
    with pytest.raises(ServingError, match="ask the endpoints behind it") as refused:
        await cards.of(target)
    assert refused.value.kind.code == "impossible"
    assert "convert" not in refused.value.message
