from __future__ import annotations

from hypothesis import given, strategies as st

from preprocess.generation.stops import Stops

LETTERS = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


def naive(text: str, stops: list[str]) -> tuple[str, bool]:
    """Character by character: the first place at which a stop string has just ended."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            return text[: end - max(map(len, ended))], True
    return text, False


@given(text=LETTERS, stops=STOPS, data=st.data())
def test_any_pieces_give_what_a_search_over_the_whole_text_gives(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[one:two] for one, two in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    looking = Stops(stops)
    given_out, whole = "", naive(text, stops)
    for piece in pieces:
        given_out += looking.feed(piece)
        # Never half sent: what is out stays a part of the answer.
        assert whole[0].startswith(given_out)
    given_out += looking.rest()
    assert (given_out, looking.found) == whole


def test_only_what_could_become_one_is_held_back() -> None:
    looking = Stops(["stop"])
    assert [looking.feed(piece) for piece in ("a s", "to", " st", "op b")] == ["a ", "", "sto ", ""]
    assert looking.found


def test_the_one_that_ends_first_is_found_though_another_begins_before_it() -> None:
    assert Stops(["abcd", "b"]).feed("abcd") == "a"
    # Of two that end at one place it is the longer one.
    assert Stops(["b", "ab"]).feed("ab") == ""


def test_what_begins_none_is_given_at_once() -> None:
    assert Stops(["stop"]).feed("tea ") == "tea "


def test_what_was_held_back_is_given_at_an_end_and_nothing_after_it() -> None:
    looking = Stops(["stop"])
    assert (looking.feed("tea st"), looking.end(), looking.found) == ("tea ", "st", True)
    assert (looking.feed("op"), looking.rest()) == ("", "")


def test_without_stop_strings_nothing_is_held() -> None:
    looking = Stops([])
    assert (looking.feed("any"), looking.rest(), looking.found) == ("any", "", False)
