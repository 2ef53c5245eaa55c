"""Stop strings: nothing leaks, whatever the split; against a search of the whole text at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.engine.stops import StopStrings
from plait.errors import UsageError

STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """(emitted text, the stop string hit)."""
    stream = StopStrings(stops)
    out = ""
    for piece in pieces:
        text, hit = stream.push(piece)
        out += text
        assert hit == (stream.matched is not None)
    return out + stream.finish(), stream.matched


def at_once(stops: list[str], text: str) -> tuple[str, str | None]:
    places = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
    return (text[: min(places)[0]], min(places)[2]) if places else (text, None)


@given(STOPS, st.lists(st.text("abc", max_size=6), max_size=12))
def test_any_split_gives_what_one_search_gives(stops: list[str], pieces: list[str]) -> None:
    out, matched = run(stops, pieces)
    assert (out, matched) == at_once(stops, "".join(pieces))
    assert not any(stop in out for stop in stops)


@given(STOPS, st.text("abc", max_size=30))
def test_only_a_possible_beginning_is_held_back(stops: list[str], text: str) -> None:
    stream = StopStrings(stops)
    out = ""
    for place, char in enumerate(text):
        safe, hit = stream.push(char)
        if hit:
            return
        out += safe
        held = text[len(out) : place + 1]
        # Only while a stop string may yet begin at the first held character; then the next one decides.
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_the_match_that_begins_first_wins_even_if_it_ends_last() -> None:
    assert run(["abcd", "bc"], ["xabc", "d"]) == ("x", "abcd")
    assert run(["abcd", "bc"], ["xabc", "e"]) == ("xa", "bc")
    assert run(["abcd", "bc"], ["xabc"]) == ("xa", "bc")


def test_after_a_hit_everything_is_swallowed() -> None:
    stream = StopStrings(["\n\n"])
    assert stream.push("one\n") == ("one", False)
    assert stream.push("\ntwo") == ("", True)
    assert stream.push("three") == ("", True)
    assert stream.finish() == ""
    assert stream.matched == "\n\n"


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert StopStrings([]).push("text") == ("text", False)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UsageError, match="stop string 1: expected at least one character"):
        StopStrings(["a", ""])
