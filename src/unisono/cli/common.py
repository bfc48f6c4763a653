"""Options that several commands take, and the configuration they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unisono.cli.show import say
from unisono.errors import ConfigError

if TYPE_CHECKING:
    from unisono.config import Config

Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        "-m",
        metavar="SPEC[=WEIGHT]",
        help="A member: gguf:PATH, a path that ends in .gguf, hf:FOLDER or hf:FILE.gguf, hf:OWNER/NAME[@REVISION] of"
        " the model hub, or demo:NAME."
        " Give it once for each member. With --rule contrastive a weight may be negative.",
    ),
]
Preset = Annotated[
    str | None, typer.Option(metavar="NAME", help="Members by one name, instead of -m: demo is the two demo models.")
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE.yaml", help="Members and settings from a file; options given here win."),
]
Threads = Annotated[int | None, typer.Option(min=1, metavar="N", help="Threads for every member.")]
NCtx = Annotated[int | None, typer.Option("--n-ctx", min=8, metavar="N", help="Tokens a member's context can hold.")]
NBatch = Annotated[int | None, typer.Option("--n-batch", min=1, metavar="N", help="Tokens a member reads at once.")]
NGpuLayers = Annotated[
    int | None, typer.Option("--n-gpu-layers", min=-1, metavar="N", help="Layers on the GPU; -1 is all.")
]
Device = Annotated[str | None, typer.Option(metavar="NAME", help="For hf: members: cpu, cuda, cuda:1, mps and so on.")]
Dtype = Annotated[str | None, typer.Option(metavar="NAME", help="For hf: members: auto, float32, bfloat16 or float16.")]
Quantization = Annotated[
    str | None, typer.Option(metavar="BITS", help="For hf: members: none, 8bit or 4bit, through bitsandbytes.")
]
Rule = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="How votes are pooled: linear (the default), log-linear, contrastive, adaptive, unite, or a plugin's rule"
        " (docs/rules.md).",
    ),
]
Plausibility = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        metavar="SHARE",
        help="With --rule contrastive: mask what has less than this share of the experts' best choice. 0 masks nothing;"
        " 0.1 is the default.",
    ),
]
TopUnion = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="With --rule unite: how many of each member's best choices are pooled; 10 by default."
    ),
]
Respell = Annotated[
    str | None,
    typer.Option(metavar="WHEN", help="With --vote pieces: word has every finished word read anew in own tokens."),
]
Vote = Annotated[str | None, typer.Option(metavar="UNIT", help="What is voted on: bytes (the default) or pieces.")]
Epsilon = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="In voting on bytes: drop a member's branches (ways to have tokenised the text) that have less than"
        " this share of its probability. 0 is exact and slow; 0.01 is the default.",
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Tokens to write at most (256 unless a file says otherwise): in voting on bytes, whole tokens of the"
        " first member, or of the gate in threshold mode; in voting on pieces, pieces.",
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT",
        help="A string that ends the text; may be given several times. A newline is $'\\n' in bash and zsh.",
    ),
]
Temperature = Annotated[
    float | None, typer.Option(metavar="T", help="0 takes the likeliest (the default); above, choices are drawn.")
]
TopK = Annotated[int | None, typer.Option(metavar="K", help="Draw among so many likeliest choices only.")]
TopP = Annotated[
    float | None, typer.Option(metavar="P", help="Draw among the fewest choices that reach this probability.")
]
MinP = Annotated[
    float | None,
    typer.Option(metavar="P", help="Draw among choices with this share of the best's probability."),
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="The same seed draws the same text.")]
RepetitionPenalty = Annotated[
    float | None, typer.Option(metavar="R", help="Above 1: makes tokens that have been written less likely.")
]
PresencePenalty = Annotated[
    float | None, typer.Option(metavar="X", help="Taken from the log-probability of tokens that have been written.")
]
FrequencyPenalty = Annotated[float | None, typer.Option(metavar="X", help="The same, for each time they have been.")]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT=X", help="Add to the log-probability of the token that is this text; repeatable."),
]
SingleVoice = Annotated[
    bool | None,
    typer.Option("--single-voice", help="With --vote pieces --temperature 1: one member, drawn anew, a token."),
]
TopLogprobs = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="With --trace or --json: record so many likeliest choices, with log-probabilities.",
    ),
]
MinTokens = Annotated[int | None, typer.Option(metavar="N", help="Tokens to write before the text may end by itself.")]
IgnoreEnd = Annotated[bool | None, typer.Option("--ignore-end", help="Never let the text end by itself.")]
IncludeStop = Annotated[bool | None, typer.Option("--include-stop", help="Keep the string that ended the text.")]
Threshold = Annotated[
    float | None,
    typer.Option(
        metavar="P", help="Threshold mode: where the gate is surer than this, nobody else is asked; 0.5, say."
    ),
]
Gate = Annotated[
    str | None, typer.Option(metavar="NAME", help="With --threshold or --boundaries: who goes on alone (the first).")
]
Skip = Annotated[
    bool | None,
    typer.Option("--skip/--no-skip", help="With --threshold: ask nobody where nobody could outvote the gate."),
]
Boundaries = Annotated[
    bool | None,
    typer.Option(
        "--boundaries", help="With --vote pieces: all vote only where the next piece begins a token for everybody."
    ),
]
Drafter = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Look ahead: this member (or auto) drafts, the others read drafts at once."),
]
ShowVotes = Annotated[
    bool, typer.Option("--show-votes", help="Print every word and the members' favourites, then the text.")
]
VotesBy = Annotated[
    str | None,
    typer.Option(
        metavar="UNIT",
        help="With --show-votes: a line for each word (the default in voting on bytes), character, token, or step (the"
        " default in voting on pieces).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no notes, progress or statistics.")]


def configuration(
    models: Sequence[str] | None, preset: str | None, file: Path | None, *, quiet: bool = False, **flags: Any
) -> Config:
    """The ensemble that the options ask for. Flags that are None were not given; members come from -m, or the
    preset, or else the file. Says what of a file has no meaning, unless it is to be quiet.

    Raises:
        ConfigError: no members, two sources of them, or a value out of range.
        UnknownName: a preset or key that does not exist.
    """
    from unisono.config import Config, checked, read_config, split_weight
    from unisono.config import preset as preset_named
    from unisono.gac import is_gac, translated
    from unisono.registry import n_gpus

    if models and preset:
        raise ConfigError("Members come from -m or from --preset, not from both: leave one out.")
    values = read_config(file) if file else {}
    if is_gac(values) and (models or preset):
        raise ConfigError(f"{file} names its own members: leave out {'-m' if models else '--preset'}.")
    if is_gac(values):
        values, notes = translated(values, str(file), n_gpus())
        for note in () if quiet else notes:
            say(f"Note: {note}")
    if models:
        pairs = [split_weight(model) for model in models]
        values["members"] = [{"model": spec, "weight": weight} for spec, weight in pairs]
    elif preset:
        values["members"] = [{"model": spec} for spec in preset_named(preset)]
    elif "members" not in values:
        missing = f"{file} names no members: add 'members:' to it, or give" if file else "No members: give"
        raise ConfigError(f"{missing} each with -m, or take the demo models with --preset demo.")
    given = {key: value for key, value in flags.items() if value is not None}
    return checked(Config, _overridden(values, given), str(file) if file else "the options")


def settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Of a command's parameters those that are keys of a configuration, as that spells them.

    Raises:
        ConfigError: a bias has no number.
    """
    from unisono.config import Config, MemberConfig

    known = {*Config.model_fields, *MemberConfig.model_fields}
    out = {key: value for key, value in given.items() if key in known}
    out["stop"] = out["stop"] or None  # an option that may be repeated comes as a list
    out["logit_bias"] = biases(out["logit_bias"]) if out["logit_bias"] else None
    return out


def biases(given: Sequence[str]) -> dict[str, float]:
    """TEXT=X, each.

    >>> biases([" the=-2", "a=b=1.5"])
    {' the': -2.0, 'a=b': 1.5}

    Raises:
        ConfigError: one has no number.
    """
    out = {}
    for each in given:
        piece, sign, number = each.rpartition("=")
        try:
            out[piece] = float(number)
        except ValueError:
            sign = ""
        if not sign or not piece:
            raise ConfigError(f"--logit-bias {each!r}: write TEXT=X with a number, ' the=-2', say.")
    return out


def _overridden(values: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """The file's values with the flags in their place; those of a member hold for every member."""
    from unisono.config import Config, MemberConfig, member_values
    from unisono.registry import shared_out

    for_members = {key: value for key, value in flags.items() if key in MemberConfig.model_fields}
    members = values["members"]
    if isinstance(members, list):  # anything else is refused when it is checked
        members = shared_out([member_values(member) for member in members], for_members)
    return {**values, **{key: value for key, value in flags.items() if key in Config.model_fields}, "members": members}
