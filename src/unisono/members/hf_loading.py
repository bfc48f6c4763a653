"""From a folder, a name on the model hub or a GGUF file to transformers' model and tokenizer, whatever can go wrong."""

from __future__ import annotations

import io
import logging
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono import cache
from unisono.errors import BackendError, ConfigError, EnsembleError, MissingBackend, ModelFileError, UnsupportedModel
from unisono.gguf import GGUFHeader

FORMAT = 2
"""Part of the name of every folder with a model out of a GGUF file; raised when what lies there changes."""


DIGITS_ALONE = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""What `tokenizer.ggml.pre` says of tokenizers that cut a text into single digits first; transformers' reader of GGUF
files takes no notice of it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wish:
    """Which model, and how it is to lie in memory; see HFMember."""

    where: str
    revision: str | None = None
    dtype: str = "auto"
    device: str | None = None
    device_map: str | Mapping[str, int | str] | None = None
    max_memory: Mapping[int | str, int | str] | None = None
    quantization: str = "none"
    trust_remote_code: bool = False
    attention: str | None = None


@dataclass(frozen=True)
class Loaded:
    """What came of it."""

    model: Any
    """A transformers model, ready to be asked."""
    tokenizer: Any
    ends: list[int]
    """The ids that its configurations call ends."""
    path: Path | None
    """The GGUF file or the folder, where it is one."""
    commit: str | None
    """What the model hub calls this state of the model."""


def packages() -> tuple[Any, Any]:
    """torch and transformers, imported now. Raises MissingBackend."""
    try:
        import torch
        import transformers
    except ImportError as exc:
        raise MissingBackend("Hugging Face", "torch and transformers", "hf") from exc
    return torch, transformers


def load(wish: Wish) -> Loaded:
    """The model that is wished for.

    Raises:
        MissingBackend: a package is missing.
        ConfigError: wishes that do not go together, a device that is not there.
        ModelFileError: no such model, or one that cannot be read.
        UnsupportedModel: it is no causal language model.
        BackendError: it does not fit into memory.
    """
    source, revision, gguf = _source(wish)  # what can be told without torch, which takes seconds to import
    torch, transformers = packages()
    device = _device(wish, torch)
    code = {"trust_remote_code": wish.trust_remote_code}
    with calm(quiet=revision is None), _explained(wish, torch):
        if gguf is not None:
            source = str(_unpacked(gguf, torch, transformers))
        at = {"pretrained_model_name_or_path": source, "revision": revision or "main"}
        config = transformers.AutoConfig.from_pretrained(**at, **code)
        if config.is_encoder_decoder:
            raise UnsupportedModel(
                f"{wish.where} ({config.model_type}) is an encoder with a decoder, and writes nothing that goes on from"
                " a text. Take a causal language model."
            )
        tokenizer = transformers.AutoTokenizer.from_pretrained(**at, **code)
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            **at,
            **code,
            config=config,
            **_placed(wish, device, torch, transformers),
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # which are refused below, by name
        )
        _check_weights(wish.where, model, found)
        _check_map(wish, model)
        if wish.device_map is None and wish.max_memory is None and wish.quantization == "none":
            model.to(device)
    if all(parameter.device.type == "meta" for parameter in model.parameters()):
        raise _nowhere(wish)
    model.eval()
    folder = Path(source) if revision is None else None
    return Loaded(model, tokenizer, _ends(model), gguf or folder, getattr(config, "_commit_hash", None))


def _nowhere(wish: Wish) -> ConfigError:
    return ConfigError(
        f"{wish.where} has nowhere to lie: device, device_map or max_memory leave no room for any of its weights."
        " Give it a larger max_memory, or leave these out."
    )


def _check_weights(where: str, model: Any, found: Mapping[str, Any]) -> None:
    """Refuse a model of which the files do not hold every weight, as its configuration has it: transformers would make
    up what is missing. Raises ModelFileError."""
    mend = "The download is incomplete, or config.json is another model's: fetch both again."
    if mismatched := sorted(found["mismatched_keys"]):
        if isinstance(mismatched[0], str):  # transformers before 5 keeps the shapes to itself
            raise ModelFileError(f"{where} holds {mismatched[0]} in a shape other than that of its config.json. {mend}")
        name, stored, wanted = mismatched[0]
        raise ModelFileError(
            f"{where} holds {name} as {list(stored)}, and its config.json asks for {list(wanted)}. {mend}"
        )
    parameters = {name for name, _ in model.named_parameters()}
    if missing := sorted(parameters.intersection(found["missing_keys"])):
        raise ModelFileError(f"{where} lacks {len(missing)} of its weights, {missing[0]} among them. {mend}")
    if unexpected := sorted(found["unexpected_keys"]):
        log.warning(
            "%s holds %d weights that its config.json has no place for, such as %s: they are left out.",
            where, len(unexpected), unexpected[0],
        )  # fmt: skip


def _check_map(wish: Wish, model: Any) -> None:
    """Refuse a device_map with a name that is no part of the model, which would be passed over. Raises ConfigError."""
    if not isinstance(wish.device_map, Mapping):
        return
    known = {name for name, _ in model.named_modules()} | {name for name, _ in model.named_parameters()}
    if unknown := sorted(set(wish.device_map) - known):
        parts = ", ".join(name for name, _ in model.named_children())
        raise ConfigError(
            f"device_map: {wish.where} has no part named {unknown[0]!r}. Its outermost are {parts}; '' is all of it."
        )


def _device(wish: Wish, torch: Any) -> Any:
    spread = wish.device_map is not None or wish.max_memory is not None
    if spread and wish.device is not None:
        raise ConfigError(f"device: {wish.device!r} and device_map or max_memory say different things: give one.")
    name = wish.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as exc:
        raise ConfigError(f"device: torch cannot use {name!r} on this machine: {_said(exc)}") from exc
    return device


def _source(wish: Wish) -> tuple[str, str | None, Path | None]:
    """What transformers is to open, of which revision, and the GGUF file if it is one."""
    if not wish.where.strip():
        raise ConfigError("hf: names no model: write hf:FOLDER, or hf:OWNER/NAME of the model hub.")
    path = Path(wish.where).expanduser()
    try:
        path.exists()
    except PermissionError as exc:
        raise ModelFileError(f"{path} cannot be read: {exc.strerror}.") from exc
    except (OSError, ValueError) as exc:
        shown = wish.where if len(wish.where) <= 60 else f"{wish.where[:60]}..."
        said = getattr(exc, "strerror", None) or _said(exc)
        raise ConfigError(f"hf:{shown} can be neither a path nor a name on the hub: {said}.") from exc
    if path.suffix == ".gguf":
        if wish.revision is not None:
            raise ConfigError(f"revision: {path} is a file, and files have none.")
        GGUFHeader.read(path)  # which knows best what can be wrong with one
        return str(path), None, path
    if path.is_dir():
        if wish.revision is not None:
            raise ConfigError(f"revision: {path} is a folder, and folders have none.")
        return str(path), None, None
    if path.is_file():
        raise ModelFileError(f"{path} is a file. Give the folder that it lies in, or a file that ends in .gguf.")
    repository, _, revision = wish.where.partition("@")
    if revision and Path(repository).expanduser().is_dir():
        raise ConfigError(f"{repository} is a folder here, and folders have no revision: leave @{revision} out.")
    if revision and wish.revision not in (None, revision):
        raise ConfigError(f"revision: {wish.revision!r}, but the model is {wish.where}: give one of both.")
    path_like = repository.startswith((".", "/", "~")) or repository.count("/") > 1 or "\\" in repository
    if path_like or not repository:
        raise ModelFileError(f"No such folder: {path}. Give a folder with a model, or OWNER/NAME of one on the hub.")
    return repository, revision or wish.revision or "main", None


def _placed(wish: Wish, device: Any, torch: Any, transformers: Any) -> dict[str, Any]:
    """How transformers is to load the model."""
    options: dict[str, Any] = {}
    if wish.dtype != "auto":
        options["dtype"] = getattr(torch, wish.dtype)
    else:
        options["dtype"] = torch.float32 if device.type == "cpu" else "auto"
    if wish.attention is not None:
        options["attn_implementation"] = wish.attention
    if wish.device_map is not None or wish.max_memory is not None:
        options["device_map"] = wish.device_map or "auto"
        if wish.max_memory is not None:
            options["max_memory"] = dict(wish.max_memory)
    if wish.quantization != "none":
        try:
            import bitsandbytes  # noqa: F401
        except ImportError as exc:
            raise MissingBackend("quantized Hugging Face", "bitsandbytes", "hf-quant") from exc
        options["quantization_config"] = (
            transformers.BitsAndBytesConfig(load_in_8bit=True)
            if wish.quantization == "8bit"
            else transformers.BitsAndBytesConfig(
                load_in_4bit=True,
                bnb_4bit_compute_dtype=torch.bfloat16 if options["dtype"] == "auto" else options["dtype"],
            )
        )
        options.setdefault("device_map", {"": device})
    return options


def _ends(model: Any) -> list[int]:
    """Every end that the model's configurations name."""
    found: set[int] = set()
    for config in (model.config, model.config.get_text_config(), model.generation_config):
        named = getattr(config, "eos_token_id", None)
        found.update(named if isinstance(named, list | tuple) else [] if named is None else [named])
    return sorted(int(i) for i in found)


def _unpacked(path: Path, torch: Any, transformers: Any) -> Path:
    """A folder with the same model in float32, made once and kept in the cache.

    Raises ModelFileError.
    """
    major = transformers.__version__.partition(".")[0]  # an older one cannot read what a newer one writes
    folder = cache.folder() / "models" / f"{path.stem[:40]}-hf{FORMAT}.{major}-{cache.checksum(path)[:16]}"
    if folder.is_dir():
        return folder
    at = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    log.warning("Unpacking %s for torch, once: this takes a minute or two.", path.name)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        cache.sweep(folder.parent, path.stem[:20])
        new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=path.stem[:20], suffix=".part"))
    except OSError as exc:
        raise _unwritable(folder, exc) from exc
    try:
        from safetensors import SafetensorError

        try:
            import gguf  # noqa: F401
        except ImportError as exc:
            raise MissingBackend("Hugging Face", "gguf, to read GGUF files,", "hf") from exc
        plain = {}
        if hasattr(transformers, "GgufConfig"):  # newer versions may leave weights in the file's own blocks
            plain["quantization_config"] = transformers.GgufConfig(dequantize=True)
        with redirect_stderr(io.StringIO()):  # a bar that nothing else turns off
            model = transformers.AutoModelForCausalLM.from_pretrained(**at, **plain, dtype=torch.float32)
        model.hf_quantizer = None  # its weights are ordinary by now, and may be saved
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        tokenizer = gguf_tokenizer(path, transformers)
        try:
            model.save_pretrained(new)
            tokenizer.save_pretrained(new)
            new.chmod(0o755)
            new.rename(folder)
        except (OSError, SafetensorError) as exc:  # which it has of its own for a full disk
            if not folder.is_dir():  # else another process was faster
                raise _unwritable(folder, exc) from exc
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder


def gguf_tokenizer(path: Path, transformers: Any) -> Any:
    """The tokenizer of a GGUF file, as transformers has it."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    if GGUFHeader.read(path).metadata.get("tokenizer.ggml.pre") in DIGITS_ALONE:
        from tokenizers import pre_tokenizers

        steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return tokenizer


def _unwritable(folder: Path, exc: Exception) -> ModelFileError:
    said = getattr(exc, "strerror", None) or _said(exc)
    return ModelFileError(
        f"{folder} cannot be written ({said}): free some room, or set UNISONO_CACHE to another folder."
    )


@contextmanager
def calm(quiet: bool = True) -> Iterator[None]:
    """Within, transformers says nothing but errors, and shows its progress only where it may have to download."""
    from transformers.utils import logging

    said, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if quiet:
        logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(said)
        if shown:
            logging.enable_progress_bar()


@contextmanager
def _explained(wish: Wish, torch: Any) -> Iterator[None]:
    """Whatever goes wrong within becomes an error of ours: transformers, the hub and a model's own code raise of all
    kinds."""
    where = wish.where
    try:
        yield
    except EnsembleError:
        raise
    except (torch.OutOfMemoryError, MemoryError) as exc:
        raise BackendError(f"{where} does not fit into memory: {MEND_MEMORY} ({_said(exc)})") from exc
    except Exception as exc:
        said = _said(exc)
        if "disk is invalid" in said:  # transformers before 5, where a map leaves all weights on the disk
            raise _nowhere(wish) from exc
        if wish.attention is not None and ("attn_implementation" in str(exc) or "attention" in str(exc).lower()):
            raise ConfigError(f"attention: {where} cannot have {wish.attention!r}: {said}") from exc
        if "trust_remote_code" in str(exc):
            said = "it brings code of its own. If you trust who wrote it, give trust_remote_code: true."
        elif "Unrecognized configuration class" in str(exc):
            raise UnsupportedModel(f"{where} is no causal language model: {said}") from exc
        elif isinstance(exc, ImportError):
            raise ModelFileError(f"{where} needs a package that is not installed: {said}") from exc
        elif not Path(where).expanduser().exists():
            said += " Nor is there a folder of that name here."
        raise ModelFileError(f"{where} cannot be opened as a Hugging Face model: {said}") from exc


MOST_SAID = 300
"""So many characters of somebody else's message go into ours."""

MEND_MEMORY = (
    "give dtype: bfloat16 or quantization: 4bit, spread it with device_map: auto, or take a smaller model or context."
)


def _said(exc: BaseException) -> str:
    """What an exception says, on one line and not for ever."""
    text = " ".join(str(exc).split()) or type(exc).__name__
    return text if len(text) <= MOST_SAID else text[:MOST_SAID] + "..."
