"""Configuration files of the code that was published with GaC (arXiv 2406.12585), read as they are.

Such a file names a set of Hugging Face models, how their votes are weighted, and where they lie:

    NORM_TYPE_API_SERVER: average      # or score: by each model's score
    THRESHOLD_API_SERVER: 0.5          # of the model whose priority is primary
    CONFIG_API_SERVER:
      - weight: OWNER/NAME             # or a folder
        name: first
        score: 100
        priority: primary              # or supportive
        quantization: none             # or 8bit, 4bit
        num_gpus: 0.5
        max_memory: {0: 24GiB}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from unisono.config import Config, checked
from unisono.errors import ConfigError, UnknownName

MEMBERS = "CONFIG_API_SERVER"
"""The key by which such a file is known."""


class _GaCMember(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    weight: str = Field(min_length=1)
    max_memory: dict[int | str, int | str] | None = None
    num_gpus: float = Field(default=0, ge=0, le=1024)
    name: str | None = Field(default=None, min_length=1)
    score: float | None = Field(default=None, allow_inf_nan=False)
    priority: Literal["primary", "supportive"] = "supportive"
    quantization: Literal["none", "8bit", "4bit"] = "none"


class _GaCConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    NORM_TYPE_API_SERVER: Literal["average", "score"] = "average"
    THRESHOLD_API_SERVER: float | None = Field(default=None, ge=0, le=1)
    CONFIG_API_SERVER: list[_GaCMember] = Field(min_length=1)


def is_gac(values: Mapping[str, Any]) -> bool:
    """Whether these are the values of such a file.

    >>> is_gac({"CONFIG_API_SERVER": []}), is_gac({"members": []})
    (True, False)
    """
    return MEMBERS in values


def translated(values: Mapping[str, Any], where: str, n_gpus: int) -> tuple[dict[str, Any], list[str]]:
    """The values of such a file as those of ours, not yet checked, and what has no meaning here. Keys of ours may stand
    beside those of the file, and win.

    Args:
        values: What the file holds.
        where: What to call it in messages.
        n_gpus: How many GPUs this machine has. GPUs are numbered within each model in such a file; here they are
            handed out in the order of the models, as many as each asks for.

    Raises:
        ConfigError: a value out of range; two gates; members of both kinds.
        UnknownName: a model has a key that does not exist.
    """
    if "members" in values:
        raise ConfigError(f"{where}: {MEMBERS} and members both name models: leave one out.")
    own = {key: value for key, value in values.items() if key in Config.model_fields}
    for key in values:
        if key not in own and key not in _GaCConfig.model_fields:
            raise UnknownName(f"key in {where}", str(key), [*_GaCConfig.model_fields, *Config.model_fields])
    given = checked(_GaCConfig, {key: value for key, value in values.items() if key not in own}, where)
    notes: list[str] = []
    models = given.CONFIG_API_SERVER
    first_gpus = _first_gpus([model.num_gpus or len(model.max_memory or ()) for model in models], n_gpus)
    by_score = given.NORM_TYPE_API_SERVER == "score"
    members = []
    for model, first in zip(models, first_gpus, strict=True):
        member: dict[str, Any] = {"model": f"hf:{model.weight}"}
        if model.name:
            member["name"] = model.name
        if by_score:
            if model.score is None:
                raise ConfigError(f"{where}: {model.name or model.weight} has no score to be weighted by: give one.")
            member["weight"] = model.score
        if model.quantization != "none":
            member["quantization"] = model.quantization
        if first is None:
            if model.num_gpus or model.max_memory:
                notes.append(
                    f"{where}: num_gpus and max_memory of {model.name or model.weight} have no meaning on this machine,"
                    f" which has no GPU{' left' if n_gpus else ''}: it is placed as if they were not there."
                )
        elif model.max_memory:
            member["max_memory"] = {
                key + first if isinstance(key, int) else key: memory for key, memory in model.max_memory.items()
            }
        elif model.num_gpus > 1:
            member["device_map"] = "auto"
        else:
            member["device"] = f"cuda:{first}"
        members.append(member)
    gates = [member for member, model in zip(members, models, strict=True) if model.priority == "primary"]
    if len(gates) > 1:
        raise ConfigError(f"{where}: {len(gates)} models have the priority primary, and only one can be the gate.")
    out: dict[str, Any] = {"vote": "pieces", "rule": "linear", "members": members}
    if gates:
        if given.THRESHOLD_API_SERVER is None and own.get("threshold") is None:
            raise ConfigError(f"{where}: a model has the priority primary: give a THRESHOLD_API_SERVER, 0.5, say.")
        gates[0].setdefault("name", gates[0]["model"].removeprefix("hf:").rstrip("/").rpartition("/")[2])
        out["gate"], out["threshold"] = gates[0]["name"], given.THRESHOLD_API_SERVER
    elif given.THRESHOLD_API_SERVER is not None:
        notes.append(f"{where}: THRESHOLD_API_SERVER has no meaning where no model has the priority primary.")
    if not by_score and any(model.score is not None for model in models):
        notes.append(f"{where}: scores have no meaning where NORM_TYPE_API_SERVER is average.")
    return {**out, **own}, notes


def _first_gpus(wanted: Sequence[float], n_gpus: int) -> list[int | None]:
    """The number of each model's first GPU; None where it asks for none, or there are not enough. Several that ask for
    a part may share one.

    >>> _first_gpus([0.5, 0.5, 2, 1], 4), _first_gpus([0.5, 0.75, 0], 2), _first_gpus([1, 1], 1)
    ([0, 0, 1, 3], [0, 1, None], [0, None])
    """
    out: list[int | None] = []
    free, left = 0, 0.0
    """The first GPU that nobody has, and what is left of the one before it."""
    for share in wanted:
        if 0 < share <= left + 1e-9:
            out.append(free - 1)
            left -= share
            continue
        n = int(-(-share // 1))
        if not n or free + n > n_gpus:
            out.append(None)
            continue
        out.append(free)
        free += n
        left = n - share if share < 1 else 0.0
    return out
