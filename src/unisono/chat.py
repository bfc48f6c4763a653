"""From what the user says to each member's own prompt: plain text, or a conversation through its chat template."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

from unisono.errors import ConfigError, PromptError, PromptTooLong, TemplateError, UnknownName, UnreadableByte
from unisono.members.base import ChatTemplate, Member
from unisono.text import split_characters
from unisono.voting.base import MemberPrompt

Message = Mapping[str, str]
"""{"role": "system" | "user" | "assistant", "content": text}."""

ROLES = ("system", "user", "assistant")

PLAIN_STOP = "\nUser:"
"""What ends a reply where a member reads plain lines: such a member goes on with the next question by itself."""


def raw_prompt(member: Member, text: str | bytes, heal: bool = True) -> MemberPrompt:
    """Plain text for the member to go on from: its BOS, where it wants one, and its own tokens. Bytes may end inside a
    character. With `heal`, the last token may turn out to be the beginning of a longer one.

    Raises:
        PromptError: there is nothing to read.
        UnreadableByte: the member's vocabulary cannot write a byte of it.
        PromptTooLong: it does not fit the member's context.
    """
    vocabulary = member.vocabulary
    try:
        data = text if isinstance(text, bytes) else text.encode()
        whole, tail = split_characters(data)
    except UnicodeError as exc:
        raise PromptError(f"The prompt is no valid Unicode text: {exc}.") from exc
    for at, byte in enumerate(tail, len(data) - len(tail)):
        if byte in vocabulary.missing_bytes:
            raise UnreadableByte(member.name, byte, at)
    dummy = " " if vocabulary.space_prefix and whole else ""
    return _checked(member, [*vocabulary.begin, *readable(member, dummy + whole)], tail, heal)


def chat_prompt(
    member: Member, messages: Sequence[Message], kwargs: Mapping[str, Any] | None = None
) -> tuple[MemberPrompt, list[str]]:
    """A conversation in the member's own template, up to where the assistant's turn begins, and what the user should
    know about it. User text that spells a control token stays text; there is exactly one BOS.

    `kwargs` go to the template besides the messages. A member without a template reads plain lines instead: the system
    message and a blank line, then `User: ...` and `Assistant: ...` lines in turn, and `Assistant:` last.

    Raises: as raw_prompt; and TemplateError where the template does not parse or refuses the messages.
    """
    for message in messages:
        if message.get("role") not in ROLES or not isinstance(message.get("content"), str):
            raise PromptError(
                f"A message needs a role ({', '.join(ROLES)}) and a content that is text, not {message!r}."
            )
    template = member.chat_template
    if template is None:
        note = (
            f"{member.name} has no chat template: it reads the conversation as plain 'User:' and 'Assistant:' lines,"
            " and a line that begins with 'User:' ends the reply."
        )
        return raw_prompt(member, plain_conversation(messages), heal=False), [note]
    for message in messages:
        try:
            message["content"].encode()
        except UnicodeError as exc:
            raise PromptError(f"The prompt is no valid Unicode text: {exc}.") from exc
        readable(member, message["content"])  # or else: a tokenizer may drop in silence what it cannot write
    notes = []
    hidden, spelled = _hide_controls(member, messages)
    try:
        rendered = render(template, hidden, member.name, kwargs)
    except TemplateError:
        if len(hidden) < 2 or hidden[0]["role"] != "system":
            raise
        rendered = render(template, _fold_system(hidden), member.name, kwargs)
        notes = [f"{member.name}'s chat template takes no system message: it stands in the first user turn instead."]
    ids: list[int] = []
    for part in re.split(f"({_HIDDEN.pattern})", rendered):
        if part in spelled:
            ids += readable(member, spelled[part])
        elif part:
            ids += member.encode(part, special=True)
    return _checked(member, _one_bos(member, ids)), notes


def plain_conversation(messages: Sequence[Message]) -> str:
    """The conversation for a model that has no template.

    >>> plain_conversation([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}])
    'Be brief.\\n\\nUser: Hi!\\nAssistant:'
    """
    out = []
    for message in messages:
        if message["role"] == "system":
            out.append(f"{message['content']}\n\n")
        else:
            out.append(f"{message['role'].capitalize()}: {message['content']}\n")
    return "".join(out) + "Assistant:"


def check_kwargs(member: Member, kwargs: Mapping[str, Any]) -> None:
    """Refuse what the member's chat template takes no notice of.

    Raises:
        ConfigError: it has none, or sets such a name by itself.
        UnknownName: the template never asks for it.
        TemplateError: the template does not parse.
    """
    if not kwargs:
        return
    template = member.chat_template
    if template is None:
        raise ConfigError(f"{member.name} has no chat template: leave out its chat_template_kwargs.")
    from jinja2 import meta

    compiled = _template(template, member.name)
    environment = compiled.environment
    ours = {"messages", "add_generation_prompt", *template.tokens, *environment.globals}
    known = meta.find_undeclared_variables(environment.parse(template.source)) - ours
    for key in kwargs:
        if key in ours:
            raise ConfigError(f"chat_template_kwargs: {key} is not for {member.name}'s user to set: leave it out.")
        if key not in known:
            mend = "Leave it out." if known else "Leave it out: the template asks for nothing besides the messages."
            raise UnknownName(f"chat_template_kwargs of {member.name}", key, known, mend)


def render(
    template: ChatTemplate, messages: Sequence[Message], name: str, kwargs: Mapping[str, Any] | None = None
) -> str:
    """The conversation as text. Templates come with models from anywhere, so they run in jinja2's sandbox.

    Raises:
        TemplateError: it does not parse, fails, or refuses the messages.
    """
    compiled = _template(template, name)
    known = {**template.tokens, **(kwargs or {})}
    try:
        return str(compiled.render(messages=[dict(m) for m in messages], add_generation_prompt=True, **known))
    except Exception as exc:  # a template may fail in any way that Python can
        raise TemplateError(f"{name}'s chat template refuses the conversation: {exc}.") from exc


def _template(template: ChatTemplate, name: str) -> Any:
    """The template, compiled. Raises TemplateError."""
    import jinja2

    try:
        return _compiled(template.source)
    except jinja2.TemplateSyntaxError as exc:
        raise TemplateError(f"{name}'s chat template does not parse: {exc.message} (line {exc.lineno}).") from exc


@lru_cache(maxsize=32)
def _compiled(source: str) -> Any:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> NoReturn:
        raise ValueError(message)

    def to_json(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = time.strftime
    return environment.from_string(source)


_HIDDEN = re.compile("\ue000[0-9]+\ue001")
_WHOLE = re.compile(".+", re.DOTALL)


def _hide_controls(member: Member, messages: Sequence[Message]) -> tuple[list[dict[str, str]], dict[str, str]]:
    """The messages with every spelling of a control token replaced by a stand-in, and what each stands for."""
    spelled: dict[str, str] = {}

    def stand_in(match: re.Match[str]) -> str:
        key = f"\ue000{len(spelled)}\ue001"
        spelled[key] = match.group()
        return key

    # A stand-in that the user wrote is hidden as well, so that it comes out as it went in.
    marks = [re.escape(mark) for m in member.vocabulary.marks.values() if (mark := m.decode(errors="ignore"))]
    pattern = re.compile("|".join([_HIDDEN.pattern, *sorted(marks, key=len, reverse=True)]))
    hidden = []
    for m in messages:
        # What the tokenizer would change (SentencePiece reads "▁" as a space) is hidden whole.
        part = pattern if _exact(member, m["content"]) is not None else _WHOLE
        hidden.append({**m, "content": part.sub(stand_in, m["content"])})
    return hidden, spelled


def _fold_system(messages: Sequence[Message]) -> list[dict[str, str]]:
    system, first, *rest = messages
    return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *map(dict, rest)]


def _one_bos(member: Member, ids: list[int]) -> list[int]:
    begin = list(member.vocabulary.begin)
    while begin and ids[: len(begin)] == begin:
        ids = ids[len(begin) :]
    return begin + ids


def readable(member: Member, text: str) -> list[int]:
    """The text as ids that spell it exactly."""
    if (ids := _exact(member, text)) is not None:
        return ids
    # Some tokenizers drop or change what they cannot write; the pieces themselves may still spell it.
    data = text.encode(errors="surrogatepass")
    vocabulary = member.vocabulary
    longest = vocabulary.longest_match(data)
    if longest is None:
        for at, byte in enumerate(data):
            if byte in vocabulary.missing_bytes:
                raise UnreadableByte(member.name, byte, at)
        raise PromptError(f"{member.name} cannot read the prompt: its vocabulary has no way to write it.")
    return longest


def _exact(member: Member, text: str) -> list[int] | None:
    """What the tokenizer writes, if that spells the text as it stands."""
    try:
        ids = member.encode(text)
    except ValueError:  # lone surrogates, or beyond the tokenizer
        return None
    return ids if member.vocabulary.join(ids) == text.encode() else None


def _checked(member: Member, ids: list[int], tail: bytes = b"", heal: bool = False) -> MemberPrompt:
    if not ids:
        raise PromptError(f"The prompt is empty, and {member.name} has no BOS token to start from: give it some text.")
    if len(ids) + len(tail) >= member.n_ctx:
        raise PromptTooLong(member.name, len(ids), member.n_ctx)
    return MemberPrompt(ids, tail, heal)
