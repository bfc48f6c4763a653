"""Whether a GGUF file reads alike through llama.cpp and, unpacked to float32, through transformers: its tokens, and the
likeliest next token at many places of a text. Beside it, how far llama.cpp agrees with itself when it reads the same
one token at a time: with quantised weights it rounds activations to 8 bits, and how that falls out depends on the size
of a batch. And how far the two agree where llama.cpp too has the same weights in float32, and need not round.

    python benchmarks/hf_agreement.py -m gguf:MODEL.gguf --positions 2000
"""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path

import numpy as np
from common import DATA, arguments, print_table

from unisono.config import MemberConfig
from unisono.demo import demo_path
from unisono.members.base import Feed, Member
from unisono.registry import open_member, split_spec

WINDOW = 256
"""Tokens of a stretch of text, each read anew."""


def favourites(member: Member, stretches: list[list[int]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """int64[n]: the likeliest next id after every id of the stretches."""
    out = []
    for ids in stretches:
        context = member.new()
        begin = list(member.vocabulary.begin)
        [logits] = member.forward([Feed(context, 0, [*begin, *ids], len(ids))])
        out.append(np.argmax(logits, axis=1))
        member.drop(context)
    return np.concatenate(out)


def unpacked(path: Path, folder: str) -> Path:
    """The same weights in float32, as a GGUF file that llama.cpp writes; 4 bytes a weight."""
    from llama_cpp import llama_cpp

    out = Path(folder) / f"{path.stem}-float32.gguf"
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = llama_cpp.LLAMA_FTYPE_ALL_F32, True
    if llama_cpp.llama_model_quantize(str(path).encode(), str(out).encode(), ctypes.byref(params)):
        raise SystemExit(f"llama.cpp could not unpack {path} into {folder}.")
    return out


def main() -> None:
    args = arguments(__doc__ or "", positions=2000, text=str(DATA / "text-multilingual-dev.txt"))
    if not Path(args.text).is_file():
        raise SystemExit(f"There is no {args.text}: give --text a file in UTF-8, best of many languages.")
    text = Path(args.text).read_text(encoding="utf-8")
    rows: list[list[object]] = []
    for spec in args.model:
        backend, where = split_spec(spec)
        path = demo_path(where) if backend == "demo" else Path(where)
        sizes = {"threads": args.threads, "n_ctx": 512, "n_contexts": 2}
        through_llama = open_member(MemberConfig(model=f"gguf:{path}", **sizes), "gguf")
        through_torch = open_member(MemberConfig(model=f"hf:{path}", **sizes), "hf")
        ids, others = through_llama.encode(text), through_torch.encode(text)
        v, w = through_llama.vocabulary, through_torch.vocabulary
        same_pieces = list(v.pieces) == list(w.pieces) and bool((v.kinds == w.kinds).all())
        stretches = [ids[at : at + WINDOW] for at in range(0, args.positions, WINDOW)]
        stretches[-1] = stretches[-1][: args.positions - WINDOW * (len(stretches) - 1)]
        small = open_member(MemberConfig(model=f"gguf:{path}", n_batch=1, **sizes), "small")
        a, b, c = (favourites(member, stretches) for member in (through_llama, through_torch, small))
        small.close()
        with tempfile.TemporaryDirectory() as folder:
            plain = open_member(MemberConfig(model=f"gguf:{unpacked(path, folder)}", **sizes), "plain")
            d = favourites(plain, stretches)
            plain.close()
        tokens = "all" if ids == others else "not all"
        pieces = "all" if same_pieces else "not all"
        shares = [f"{np.mean(x == y):.1%}" for x, y in ((b, d), (a, b), (a, c))]
        rows.append([path.name[:20], f"{tokens} of {len(ids):,}", pieces, *shares, len(a)])
        through_llama.close()
        through_torch.close()
    columns = ["file", "tokens alike", "pieces alike", "both, float32", "both", "llama.cpp, one by one", "places"]
    print_table(f"llama.cpp beside transformers, on {Path(args.text).name}", columns, rows)


if __name__ == "__main__":
    main()
