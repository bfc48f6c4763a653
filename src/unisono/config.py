"""What a user writes (YAML, flags, Python), checked in one place."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from unisono.arrays import Weights
from unisono.errors import ConfigError, UnknownName

PRESETS: dict[str, list[str]] = {"demo": ["demo:smollm2-135m", "demo:gemma3-270m"]}
"""Ensembles by name."""


def _parts(given: Any) -> list[Any]:
    if isinstance(given, dict):
        return [*given, *given.values()]
    return given if isinstance(given, list) else [given]


MOST_THREADS, MOST_TOKENS = 1 << 16, 1 << 28
"""More is a mistake, and would be another number where a backend has 32 bits for it."""


class _Checked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, given: Any, info: ValidationInfo) -> Any:
        """YAML's true, yes and on are 1 to pydantic."""
        if info.field_name not in ("logit_bias", "ends", "max_memory", "device_map"):
            wanted = cls.model_fields[info.field_name or ""].annotation
            if isinstance(given, bool) and {int, float} & {wanted, *get_args(wanted)}:
                raise ValueError("should be a number")
        elif any(isinstance(part, bool) for part in _parts(given)):
            raise ValueError("should hold no true or false")
        return given


class MemberConfig(_Checked):
    """One member."""

    model: str = Field(min_length=1)
    """Spec: gguf:PATH, a path that ends in .gguf, hf:FOLDER, hf:OWNER/NAME[@REVISION] of the hub, or demo:NAME."""
    weight: float | None = None
    """Share in the pooled vote; weights are scaled to sum to 1. None for all members: equal weights. With the rule
    contrastive, the factor of the member's log-probabilities, taken as it is: positive for an expert, negative for an
    amateur."""
    name: str | None = Field(default=None, min_length=1)
    """What to call the member; None takes it from the spec."""
    threads: int | None = Field(default=None, ge=1, le=MOST_THREADS)
    """Threads for this member; None takes the ensemble's."""
    n_ctx: int = Field(default=4096, ge=8, le=MOST_TOKENS)
    """Tokens its context can hold, at most what the model was trained on."""
    n_cells: int | None = Field(default=None, ge=8, le=MOST_TOKENS)
    """Tokens that all its contexts together can hold; None: n_ctx and one batch more, or with hf as many as come."""
    n_batch: int = Field(default=512, ge=1, le=MOST_TOKENS)
    """Tokens read at once; longer prompts go in chunks."""
    n_contexts: int = Field(default=64, ge=1, le=256)
    """How many contexts can live at the same time."""
    n_gpu_layers: int = Field(default=0, ge=-1, le=MOST_THREADS)
    """With gguf and demo: layers on the GPU, where llama.cpp was built for one; -1 is all."""
    revision: str | None = Field(default=None, min_length=1)
    """With hf: branch, tag or commit on the model hub."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """With hf: what to compute in. auto is float32 on a CPU, and elsewhere what the model is stored in."""
    device: str | None = Field(default=None, min_length=1)
    """With hf: cpu, cuda, cuda:1, mps and so on; None takes the first GPU, or the CPU where there is none."""
    device_map: str | dict[str, int | str] | None = None
    """With hf: spread the model over devices: auto, balanced, sequential, or a device for each of its parts."""
    max_memory: dict[int | str, int | str] | None = None
    """With hf: how much of each device to take for the model, {0: 20GiB, cpu: 60GiB}, say; spreads it."""
    quantization: Literal["none", "8bit", "4bit"] = "none"
    """With hf: store the model in fewer bits, through bitsandbytes."""
    trust_remote_code: bool = False
    """With hf: run the code that some models bring along."""
    attention: str | None = Field(default=None, min_length=1)
    """With hf: the model's own attention of this name (eager, sdpa, flash_attention_2) instead of ours, which remembers
    what it has read; slow, for comparisons."""
    chat_template_kwargs: dict[str, Any] = {}
    """What to tell its chat template besides the messages, such as enable_thinking: false."""
    ends: list[int] | None = None
    """Ids that end the text, instead of those that the model names."""


class TextConfig(_Checked):
    """How one text is written."""

    max_tokens: int | None = Field(default=256, ge=1)
    """How many tokens to write at most: whole tokens of the first member (of the gate, in threshold mode), or pieces in
    voting on pieces; null: until a context is full."""
    min_tokens: int = Field(default=0, ge=0)
    """How many tokens to write at least: before, the text cannot end by itself."""
    ignore_end: bool = False
    """Never let the text end by itself."""
    stop: list[str] = []
    """Strings that end the text; one may stand alone."""

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_more(cls, given: Any) -> Any:
        return [given] if isinstance(given, str) else given

    include_stop: bool = False
    """Whether the string that ended the text is part of it."""
    heal: bool = True
    """In voting on bytes, let the prompt's last token be the beginning of a longer one."""
    temperature: float = Field(default=0.0, ge=0, le=100)
    """0 takes the likeliest; above, choices are drawn from the pooled distribution: 1 as it is, less sharper, more
    flatter."""
    top_k: int | None = Field(default=None, ge=1)
    """Draw among so many likeliest choices only."""
    top_p: float = Field(default=1.0, ge=0, le=1)
    """Draw among the fewest likeliest choices that reach this probability together."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Draw among the choices that have at least this share of the likeliest's probability."""
    repetition_penalty: float = Field(default=1.0, ge=0.01, le=100)
    """Above 1, makes tokens that have been written less likely: their log-probability times this."""
    presence_penalty: float = Field(default=0.0, ge=-100, le=100)
    """Taken from the log-probability of tokens that have been written."""
    frequency_penalty: float = Field(default=0.0, ge=-100, le=100)
    """The same, for each time."""
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] = {}
    """Added to the log-probability of the token that is exactly this text, with every member that has one; from -100,
    which is practically never, to 100."""
    seed: int | None = Field(default=None, ge=0)
    """The same seed draws the same text; null: another one each time."""
    top_logprobs: int = Field(default=0, ge=0, le=1000)
    """How many of the likeliest choices each step tells, with their log-probabilities."""
    single_voice: bool = False
    """In voting on pieces at temperature 1 under the linear rule: draw one member for each token, by the weights, and
    ask that one alone. The texts are distributed as without, for one forward a token instead of one of each member."""


class Config(TextConfig):
    """An ensemble and how it writes."""

    members: list[MemberConfig] = Field(min_length=1)
    """The members, in order; one of which nothing else is to be said may be just its spec, or SPEC=WEIGHT."""

    @field_validator("members", mode="before")
    @classmethod
    def _from_specs(cls, given: Any) -> Any:
        if not isinstance(given, list):
            return given
        return [member_values(member) for member in given]

    threads: int | None = Field(default=None, ge=1, le=MOST_THREADS)
    """Threads for every member that names none; None: as many as llama.cpp finds good."""
    vote: Literal["bytes", "pieces"] = "bytes"
    """Unit of voting: bytes, exact across tokenizers, or pieces, GaC as published."""
    epsilon: float = Field(default=0.01, ge=0, lt=1)
    """In voting on bytes, the share below which one of a member's branches is dropped; 0 is exact (up to
    64 branches) and slow."""
    merge: int | None = Field(default=None, ge=0)
    """In voting on bytes, branches whose last tokens, so many, are the same count as one; 0: never. null: 4, and 0
    where epsilon is 0."""
    respell: Literal["none", "word"] = "none"
    """In voting on pieces, word has every member read each finished word anew in its own tokens; the text stays."""
    utf8: bool = True
    """In voting on bytes, mask what cannot go on with valid UTF-8."""
    rule: str = "linear"
    """How votes are pooled: linear, log-linear, contrastive, adaptive, unite, or a plugin's rule."""
    plausibility: float | None = Field(default=None, ge=0, le=1)
    """With the rule contrastive, mask choices that have less than this share of what the experts give their best one; 0
    masks nothing. None: 0.1."""
    top_union: int | None = Field(default=None, ge=1)
    """With the rule unite, how many of each member's best choices are pooled. None: 10."""
    threshold: float | None = Field(default=None, ge=0, le=1)
    """Threshold mode: where the gate gives its likeliest token more than this, it is taken and nobody else runs. 0 is
    the gate alone, 1 a vote at every step, 0.5 is usual; null: all vote at every step."""
    gate: str | None = None
    """In threshold mode, and with boundaries, the member that goes on by itself; null: the first."""
    skip: bool = True
    """In threshold mode, ask nobody else where nobody could outvote the gate."""
    boundaries: bool = False
    """In voting on pieces, all vote only where the gate's next piece begins a token for all others as well; elsewhere
    the gate goes on alone."""
    drafter: str | None = None
    """Look ahead: the member that writes on by itself, for the others to read in one forward; auto takes the fastest.
    The text stays the same."""
    chat: bool = False
    """Give each member the prompt as a conversation, through its own chat template."""


SMALLEST_SHARE = 1e-30
"""Of the largest weight: well above where single precision makes a weight 0, and 0 times log 0 is nan."""

EXPONENTS = (1e-6, 1e6)
"""The smallest and the largest size of a weight that is a factor of log-probabilities: within what single precision
can tell apart."""

T = TypeVar("T", bound=BaseModel)


def checked(model: type[T], values: Any, where: str) -> T:
    """The values as a model; `where` says in a message what they are of.

    Raises:
        UnknownName: a key that does not exist, with the nearest one that does.
        ConfigError: a value out of range or of the wrong type.
    """
    try:
        return model.model_validate(values)
    except ValidationError as exc:
        first = exc.errors()[0]
        path = [str(part) for part in first["loc"]]
        if first["type"] == "extra_forbidden":
            raise UnknownName(f"key in {where}", path[-1], _known(model, path[:-1])) from exc
        key = ".".join(path) or "the whole"
        if first["type"] in ("model_type", "list_type") and "members" in path[-2:]:
            shape = "a list" if first["type"] == "list_type" else "a spec, or keys and values such as model: SPEC"
            raise ConfigError(
                f"{where}: {key}: should be {shape}, not {_short(first['input'])}. Write members: [demo:smollm2-135m],"
                " say."
            ) from exc
        if first["type"] == "model_type":
            raise ConfigError(f"{where}: {key}: should be keys and values, not {_short(first['input'])}.") from exc
        if first["type"] == "literal_error":
            choices = [choice.strip("' ") for choice in first["ctx"]["expected"].replace(" or ", ",").split(",")]
            raise UnknownName(f"value of {key} in {where}", str(first["input"])[:MOST_SHOWN], choices) from exc
        if first["type"] == "string_unicode":
            raise ConfigError(
                f"{where}: {key}: {first['input']!r} is not valid UTF-8. If it is a file, rename that, or link to it."
            ) from exc
        message = first["msg"].removeprefix("Value error, ")
        given = "" if first["type"] == "missing" else f", not {_short(first['input'])}"
        raise ConfigError(f"{where}: {key}: {message[0].lower()}{message[1:]}{given}.") from exc


MOST_SHOWN = 200
"""Characters of a wrong value that a message repeats."""


def _short(given: Any) -> str:
    shown = repr(given)
    return shown if len(shown) <= MOST_SHOWN else shown[:MOST_SHOWN] + "..."


def _known(model: type[BaseModel], path: Sequence[str]) -> Iterable[str]:
    """The keys of the model, or of the one in a list of it that the path leads to."""
    if not path:
        return model.model_fields
    inner = [part for part in get_args(model.model_fields[path[0]].annotation) if isinstance(part, type)]
    return _known(next(part for part in inner if issubclass(part, BaseModel)), path[2:])


def read_config(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds, not yet checked.

    Raises:
        ConfigError: no such file, not YAML, or no mapping.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a mapping in which a key stands twice, of which YAML's own takes the last."""

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            seen = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if (key.tag, key.value) in seen:
                        line = key.start_mark.line + 1
                        raise yaml.YAMLError(f"{key.value} stands twice, the second time in line {line}")
                    seen.add((key.tag, key.value))
            return node

    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except FileNotFoundError as exc:
        raise ConfigError(
            f"{path} cannot be read: {exc.strerror}. Check the path, or write the file: one line,"
            " 'members: [demo:smollm2-135m, demo:gemma3-270m]', is enough."
        ) from exc
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}. Give --config a YAML file.") from exc
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        said = " ".join(str(exc).replace('"<unicode string>"', str(path)).split())
        raise ConfigError(f"{path} is not valid YAML: {said}.") from exc
    if not isinstance(values, dict):
        found = "nothing" if values is None else type(values).__name__
        raise ConfigError(f"{path} must hold keys and values, such as 'members:'; it holds {found}.")
    return values


def preset(name: str) -> list[str]:
    """The specs of an ensemble by name. Raises UnknownName."""
    if name not in PRESETS:
        raise UnknownName("preset", name, PRESETS)
    return PRESETS[name]


def split_weight(argument: str) -> tuple[str, float | None]:
    """SPEC or SPEC=WEIGHT, as `-m` takes it.

    >>> split_weight("demo:smollm2-135m=0.3"), split_weight("a.gguf")
    (('demo:smollm2-135m', 0.3), ('a.gguf', None))
    """
    spec, sign, weight = argument.rpartition("=")
    try:
        if not sign or Path(argument.removeprefix("gguf:")).exists():
            return argument, None
    except OSError as exc:
        raise ConfigError(f"{argument[:60]}... cannot be a path: {exc.strerror}.") from exc
    try:
        return spec, float(weight)
    except ValueError:
        raise ConfigError(f"{weight!r} in {argument!r} is no weight: write {spec}=0.5, say.") from None


def member_values(given: Any) -> Any:
    """What stands in a list of members: SPEC and SPEC=WEIGHT as keys and values, anything else as it is.

    >>> member_values("a.gguf=2"), member_values({"model": "a.gguf"})
    ({'model': 'a.gguf', 'weight': 2.0}, {'model': 'a.gguf'})

    Raises:
        ConfigError: the weight is no number.
    """
    if not isinstance(given, str):
        return given
    spec, weight = split_weight(given)
    return {"model": spec, "weight": weight}


def weights_of(given: Sequence[float | None], names: Sequence[str], *, signed: bool = False) -> Weights:
    """Weights as they pool: equal where none is given, else scaled to sum to 1; or, where the rule takes either sign,
    as they are.

    Raises:
        ConfigError: some are given and some are not; one is not positive, not finite, or next to nothing beside the
            largest; the number is wrong; there are no members. With either sign: one is 0, not finite, or of no
            reasonable size; none is positive.

    >>> weights_of([3, 1], ["a", "b"]).tolist(), weights_of([3, -1], ["a", "b"], signed=True).tolist()
    ([0.75, 0.25], [3.0, -1.0])
    """
    if not names:
        raise ConfigError("An ensemble needs at least one member.")
    if len(given) != len(names):
        raise ConfigError(f"{len(given)} weights for {len(names)} members: give one weight for each of them.")
    if all(weight is None for weight in given):
        return np.full(len(names), 1 / len(names))
    for weight, name in zip(given, names, strict=True):
        if weight is None:
            raise ConfigError(f"{name} has no weight, but others have: give every member a weight, or none.")
        if signed:
            _check_exponent(weight, name)
        elif not (math.isfinite(weight) and weight > 0):
            mend = "Leave out a member to give it none."
            if weight < 0:
                mend = "Only the rule contrastive takes negative ones."
            raise ConfigError(f"{name}'s weight is {weight}: weights must be positive and finite. {mend}")
    out: Weights = np.array(given, dtype=np.float64)
    if signed:
        if not (out > 0).any():
            raise ConfigError(
                "No member's weight is positive: the rule contrastive needs an expert, from whose votes those of the"
                " amateurs are taken off."
            )
        return out
    out /= out.max()  # so that huge weights do not overflow in the sum
    if out.min() < SMALLEST_SHARE:
        name = names[int(out.argmin())]
        raise ConfigError(f"{name}'s weight is next to nothing beside the largest: leave out a member to give it none.")
    out /= out.sum()
    return out


def _check_exponent(weight: float, name: str) -> None:
    smallest, largest = EXPONENTS
    if not smallest <= abs(weight) <= largest:  # nan is not, either
        raise ConfigError(
            f"{name}'s weight is {weight}: with the rule contrastive it must be from {smallest:g} to {largest:g} for an"
            f" expert, or from -{largest:g} to -{smallest:g} for an amateur. Leave out a member to give it none."
        )
