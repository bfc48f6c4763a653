"""What hypothesis draws: small vocabularies with all that real ones do to us, and members over them.

Three or four bytes make many shared prefixes; two of them are the halves of "é".
"""

from __future__ import annotations

from hypothesis import strategies as st

from unisono.members.fake import TableMember
from unisono.vocabulary import Kind, Vocabulary

ALPHABET = (b"a", b"b", b" ", b"\xc3", b"\xa9", b"\xff", b"\xfe")

PROMPT = "aa"
"""What every drawn member can read."""


def pieces(max_size: int = 4) -> st.SearchStrategy[bytes]:
    """A few bytes of the alphabet, the first of them the likeliest."""
    return st.lists(st.sampled_from(ALPHABET), min_size=1, max_size=max_size).map(b"".join)


def texts(max_size: int = 12) -> st.SearchStrategy[bytes]:
    """Bytes to be spelled, empty ones included."""
    return st.lists(st.sampled_from(ALPHABET), max_size=max_size).map(b"".join)


@st.composite
def vocabularies(draw: st.DrawFn, max_ids: int = 20) -> Vocabulary:
    """Pieces that start alike or are the same, byte fallbacks, several ends or none, control tokens with and without a
    spelling, a BOS or none. Many lack bytes; all have b"a"."""
    entries = draw(st.lists(st.tuples(pieces(), st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2, 2, 3])), max_size=max_ids))
    entries.insert(draw(st.integers(0, len(entries))), (b"a", Kind.TEXT))
    for at in draw(st.lists(st.integers(0, len(entries) - 1), max_size=2)):
        entries[at] = entries[at] if entries[at] == (b"a", Kind.TEXT) else (b"", entries[at][1])
    kinds = [Kind.TEXT if kind == Kind.BYTE and len(piece) > 1 else kind for piece, kind in entries]
    made = Vocabulary.build([piece for piece, _ in entries], kinds)
    begins = [()] + [(int(i),) for i in made.controls]
    begin = draw(st.sampled_from(begins))
    return Vocabulary(made.pieces, made.kinds, begin, draw(st.booleans()) and b" " in made.canonical, made.marks)


@st.composite
def members(draw: st.DrawFn, max_members: int = 3) -> list[TableMember]:
    """One to three members, two of which may have the same vocabulary."""
    drawn = draw(st.lists(vocabularies(max_ids=14), min_size=1, max_size=max_members))
    if len(drawn) > 1 and draw(st.booleans()):
        drawn[1] = drawn[0]
    seed = draw(st.integers(0, 1 << 20))
    return [TableMember.random(f"m{n}", vocabulary, seed=seed + n) for n, vocabulary in enumerate(drawn)]


def weights(n: int) -> st.SearchStrategy[list[float]]:
    """Positive, of any scale."""
    return st.lists(st.floats(0.01, 100.0), min_size=n, max_size=n)
