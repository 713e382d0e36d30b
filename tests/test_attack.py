"""That the attack's raw requests are found at fault where their answers are not as they must be."""

from __future__ import annotations

import json

import pytest

from tests.attack.ground import ANSWER
from tests.attack.raw_bodies import body_cases
from tests.attack.raw_heads import head_cases, pipelines, request
from tests.attack.raw_http import Answer, Raw, answers_in, fault_of

RIGHT = json.dumps(ANSWER).encode()
OWN, PROBE = Answer(200, "case", RIGHT), Answer(200, "probe", RIGHT)
GOOD = Raw("good", request(), {200})
TWO = next(case for case in pipelines() if case.name == "pipeline: two")


def test_right_answers_have_no_fault() -> None:
    assert fault_of(GOOD, [OWN, PROBE]) is None
    pair = [Answer(200, f"case-{one}", RIGHT) for one in range(2)]
    assert fault_of(TWO, [*pair, PROBE]) is None


@pytest.mark.parametrize(
    ("answers", "fault"),
    [
        ([OWN, OWN, PROBE], "an answer too many"),
        ([Answer(200, "smuggled", RIGHT), PROBE], "an answer to what was no request"),
        ([PROBE, OWN], "answers in another order"),
        ([Answer(500, "case", b""), PROBE], "statuses [500]"),
        ([PROBE], "statuses [0]"),
        ([OWN, Answer(400, "probe", b"")], "the next request is refused"),
        ([Answer(200, "case", b'{"label": "another", "score": 1}'), PROBE], "a wrong answer"),
    ],
)
def test_a_fault_is_found(answers: list[Answer], fault: str) -> None:
    assert fault_of(GOOD, answers) == fault


def test_a_repeated_text_is_found() -> None:
    case = Raw("bad", request(), {400})
    assert fault_of(case, [Answer(400, "case", b"no kettle")]) == "a request's data is repeated"


def test_what_came_is_cut_into_answers() -> None:
    one = b"HTTP/1.1 200 OK\r\nx-request-id: a\r\ncontent-length: 2\r\n\r\nab"
    parts = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"
    assert answers_in(one + parts + one, "POST") == [
        Answer(200, "a", b"ab"), Answer(200, "", b"ab"), Answer(200, "a", b"ab"),
    ]  # fmt: skip
    assert answers_in(b"HTTP/1.1 100 Continue\r\n\r\n" + one, "POST")[0].body == b"ab"
    assert [answer.body for answer in answers_in(head + one, "HEAD")] == [b"", b"ab"]
    with pytest.raises(ValueError, match="after 1 answers"):
        answers_in(one + b"no HTTP\r\n", "POST")


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.name for case in (*head_cases(), *body_cases())]
    assert len(set(names)) == len(names) > 110
