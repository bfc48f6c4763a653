"""What can go wrong and be put right by the person who asked; every message names the thing and the mend.

EnsembleError
├── ModelFileError         a model file is missing, cut short, or not what it should be
├── UnsupportedModel       the file is sound, but this kind of model cannot take part
├── MissingBackend         a package that the member needs is not installed
├── DemoNotInstalled       a demo model's package is not installed
├── PluginError            a plugin that is installed cannot be imported, or is not what it should be
├── UnknownName            a backend, preset, rule, demo model or key that does not exist
├── ConfigError            a value out of range, weights that do not fit, a file that does not parse
├── PromptError            a prompt that cannot be read
│   ├── PromptTooLong      it does not fit the smallest context
│   └── UnreadableByte     some member's vocabulary has no way to write one of its bytes
├── CacheFull              a member's key-value cache has no room left; its contexts are unchanged
├── BadLogits              a member returned NaN or infinite logits
├── BackendError           a backend failed for a reason of its own
├── NoCommonChoice         the votes left nothing to choose from
└── TemplateError          a chat template that does not parse or refuses the messages
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EnsembleError(Exception):
    """Something the user can repair. The command line prints the message and exits 2."""


class ModelFileError(EnsembleError):
    """A model file is missing, cut short, or not what it should be."""


class UnsupportedModel(EnsembleError):
    """The file is sound, but this kind of model cannot take part."""


class MissingBackend(EnsembleError):
    """A package that the member needs is not installed.

    >>> str(MissingBackend("llama.cpp", "llama-cpp-python", "llamacpp"))
    "The llama.cpp member needs llama-cpp-python: install the extra llamacpp, pip install -e '.[llamacpp]'."
    """

    def __init__(self, backend: str, package: str, extra: str) -> None:
        super().__init__(
            f"The {backend} member needs {package}: install the extra {extra}, pip install -e '.[{extra}]'."
        )


class DemoNotInstalled(EnsembleError):
    """A demo model's package is not installed."""


class PluginError(EnsembleError):
    """A plugin that is installed cannot be imported, or is not what it should be.

    >>> str(PluginError("rule", "dice", "dice:roll", "ImportError: no dice"))
    "The rule 'dice' comes from a plugin (dice:roll) that does not work: ImportError: no dice. Mend or uninstall it."
    """

    def __init__(self, what: str, name: str, where: str, fault: str) -> None:
        super().__init__(
            f"The {what} {name!r} comes from a plugin ({where}) that does not work: {fault}. Mend or uninstall it."
        )


class UnknownName(EnsembleError):
    """A name that does not exist, with the nearest one that does.

    >>> str(UnknownName("backend", "ggfu", ["gguf", "demo"]))
    "No backend named 'ggfu'. Did you mean 'gguf'? Known: demo, gguf."
    """

    def __init__(self, what: str, name: str, known: Iterable[str], mend: str = "") -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        listed = f" Known: {', '.join(names)}." if names else ""
        super().__init__(f"No {what} named {name!r}.{hint}{listed}{' ' + mend if mend else ''}")


class ConfigError(EnsembleError):
    """A value out of range, weights that do not fit, a file that does not parse."""


class PromptError(EnsembleError):
    """A prompt that cannot be read."""


class PromptTooLong(PromptError):
    """A prompt does not fit the smallest context."""

    def __init__(self, member: str, n_tokens: int, n_ctx: int) -> None:
        super().__init__(
            f"The prompt takes {n_tokens:,} tokens of {member}, whose context holds {n_ctx:,} and needs room for"
            " at least one more. Shorten the prompt, or give the member a longer context with --n-ctx."
        )


class UnreadableByte(PromptError):
    """Some member's vocabulary has no way to write a byte of the prompt."""

    def __init__(self, member: str, byte: int, at: int) -> None:
        super().__init__(
            f"The prompt holds byte 0x{byte:02X} (at byte {at}), which {member} cannot read: its vocabulary has no"
            f" token for it. Remove the byte, or leave {member} out. `unisono inspect` lists the bytes a member lacks."
        )


class CacheFull(EnsembleError):
    """A member's key-value cache has no room left; its contexts are unchanged."""


class BadLogits(EnsembleError):
    """A member returned NaN or infinite logits."""

    def __init__(self, member: str) -> None:
        super().__init__(
            f"{member} returned NaN or infinite logits. The model file may be damaged, or its arithmetic overflows"
            " at this precision: check the file's checksum, or use another quantisation."
        )


class BackendError(EnsembleError):
    """A backend failed for a reason of its own."""


class NoCommonChoice(EnsembleError):
    """The votes left nothing to choose from."""


class TemplateError(EnsembleError):
    """A chat template that does not parse or refuses the messages."""
