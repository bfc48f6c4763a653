from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from unisono.text import TextStream

CHARACTERS = ["a", "b", "é", "語", "😀"]

stop_strings = st.lists(st.text(st.sampled_from(CHARACTERS), min_size=1, max_size=4), max_size=3)


def written(whole: bool = False) -> st.SearchStrategy[bytes]:
    """Text of few characters, so that stop strings come up in it; unless whole, damaged at any byte."""
    text = st.text(st.sampled_from(CHARACTERS), max_size=10).map(str.encode)
    bits = st.lists(
        st.sampled_from([b"a", b"b", b"\xc3", b"\xa9", b"\xe8", b"\xf0\x9f", b"\x98", b"\xff"]), max_size=10
    )
    return text if whole else st.one_of(text, bits.map(b"".join))


@st.composite
def cut_up(draw: st.DrawFn, data: bytes) -> list[bytes]:
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(written(), stop_strings, st.booleans(), st.data())
def test_the_text_is_the_same_however_its_bytes_are_cut(
    data: bytes, stop: list[str], include_stop: bool, draw: st.DataObject
) -> None:
    stream = TextStream(stop, include_stop)
    out = "".join(stream.add(part) for part in draw.draw(cut_up(data))) + stream.finish()
    assert (out, stream.stopped) == reference.text_until(data, [s.encode() for s in stop], include_stop)


@given(written(), stop_strings, st.data())
def test_all_that_can_be_shown_is_shown_and_no_more(data: bytes, stop: list[str], draw: st.DataObject) -> None:
    stops = [s.encode() for s in stop]
    stream, out, seen = TextStream(stop), "", b""
    for part in draw.draw(cut_up(data)):
        out += stream.add(part)
        seen += part
        if stream.stopped:
            assert out == reference.text_until(seen, stops)[0]
            assert stream.add(b"more") == stream.finish() == ""
            break
        assert out == reference.text_to_show(seen, stops)


@given(written(whole=True), stop_strings.filter(bool), st.data())
def test_no_stop_string_is_ever_shown(data: bytes, stop: list[str], draw: st.DataObject) -> None:
    stream, out = TextStream(stop), ""
    for part in draw.draw(cut_up(data)):
        out += stream.add(part)
        assert not any(s in out for s in stop)
    assert not any(s in out + stream.finish() for s in stop)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_out_as_it_went_in_byte_by_byte(text: str) -> None:
    stream = TextStream()
    shown = [stream.add(bytes([b])) for b in text.encode()]
    assert "".join(shown) == text
    assert stream.finish() == ""
    assert all(len(part) <= 1 for part in shown)


def test_half_a_character_at_the_end_is_shown_as_the_replacement_character() -> None:
    stream = TextStream()
    assert (stream.add("語".encode()[:2]), stream.finish()) == ("", "\ufffd")


def test_what_only_looked_like_a_stop_string_is_shown_in_the_end() -> None:
    stream = TextStream(["\n\nUser:"])
    assert (stream.add(b"yes\n\nUse"), stream.finish(), stream.stopped) == ("yes", "\n\nUse", False)


@pytest.mark.parametrize(("include_stop", "text"), [(False, "a"), (True, "aSTOP")])
def test_the_stop_string_is_part_of_the_text_only_where_asked_for(include_stop: bool, text: str) -> None:
    stream = TextStream(["STOP"], include_stop)
    assert stream.add(b"aST") + stream.add(b"OPb") + stream.finish() == text
    assert stream.stopped


def test_of_two_stop_strings_the_one_complete_first_ends_the_text() -> None:
    stream = TextStream(["long stop string", "stop"])
    assert stream.add(b"a long stop string") == "a long "


def test_of_two_that_are_complete_at_once_the_longer_is_cut_off() -> None:
    stream = TextStream(["stop", "full stop"])
    assert stream.add(b"a full stop") == "a "


def test_an_empty_stop_string_stops_nothing() -> None:
    stream = TextStream([""])
    assert (stream.add(b"abc"), stream.stopped) == ("abc", False)
