from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from unisono.text import TextStream


@st.composite
def cases(draw: st.DrawFn, damaged: bool = True) -> tuple[list[bytes], list[str]]:
    """A text in parts, and stop strings of which many beginnings stand in it; where damaged, it is no valid UTF-8."""
    characters = draw(st.sampled_from(["ab", "aé", "ab\n", "é語😀"]))
    stops = draw(st.lists(st.text(st.sampled_from(characters), min_size=1, max_size=4), max_size=3))
    fragments = [*characters, *(s[:n] for s in stops for n in range(1, len(s)))]
    data = "".join(draw(st.lists(st.sampled_from(fragments), max_size=8))).encode()
    if draw(st.booleans()):
        data += draw(st.sampled_from([""] + [s for s in stops if s])).encode() + data[:3]
    if damaged and draw(st.booleans()):
        bits = [s.encode()[:n] for s in [*stops, characters[-1]] for n in range(1, len(s.encode()))] or [b"\xff"]
        data += b"".join(draw(st.lists(st.sampled_from([*bits, b"\xff", b"a"]), max_size=4)))
    if not damaged:
        data = data.decode(errors="ignore").encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)], stops


@given(cases(), st.booleans())
def test_the_text_is_the_same_however_its_bytes_are_cut(
    case: tuple[list[bytes], list[str]], include_stop: bool
) -> None:
    parts, stops = case
    stream = TextStream(stops, include_stop)
    out = "".join(stream.add(part) for part in parts) + stream.finish()
    assert (out, stream.stopped) == reference.text_until(b"".join(parts), [s.encode() for s in stops], include_stop)


@given(cases())
def test_all_that_can_be_shown_is_shown_and_no_more(case: tuple[list[bytes], list[str]]) -> None:
    parts, stop = case
    stops = [s.encode() for s in stop]
    stream, out, seen = TextStream(stop), "", b""
    for part in parts:
        out += stream.add(part)
        seen += part
        if stream.stopped:
            assert out == reference.text_until(seen, stops)[0]
            assert stream.add(b"more") == stream.finish() == ""
            break
        assert out == reference.text_to_show(seen, stops)


@given(cases(damaged=False))
def test_no_stop_string_is_ever_shown(case: tuple[list[bytes], list[str]]) -> None:
    parts, stops = case
    stream, out = TextStream(stops), ""
    for part in parts:
        out += stream.add(part)
        assert not any(s in out for s in stops)
    assert not any(s in out + stream.finish() for s in stops)


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
