"""What an agent should know at the start of its work in a workspace: as data, and as a text.

It is put together from what is known on this machine: the mirror of what the host said last, memory, links.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..errors import MemoryFileError
from ..location import Location
from .asking import FOLDER_GONE, GONE, LinkedWorkspace, known_absolute
from .links import WorkspaceGroups, link_id
from .mirror import UNKNOWN, Mirror, Reflection
from .skills import Skill, read_skill
from .store import MemoryStore
from .text import shares, shortened

MEMORY_CHARS = 16_000
"""Characters for the memory of a workspace and those linked with it, if nothing else is asked for."""

INSTRUCTION_CHARS = 64_000
"""The same for instructions."""


@dataclass(frozen=True)
class Instruction:
    """A file that tells agents about a folder: an `AGENTS.md` or its like.

    Attributes:
        location: where it is: `host:/path`, or a path of this machine.
        text: its content, maybe cut in the middle.
    """

    location: str
    text: str


@dataclass(frozen=True)
class WorkspaceContext:
    """What an agent should know of a workspace.

    Attributes:
        location: the workspace.
        host: as the user spells it; "this machine" for the local one.
        os: the host's kind, as `uname -s` says; None while it is not known, like the next.
        arch: its processor, as `uname -m` says.
        state: of the host when it was asked last: "ready", "gone" (the folder is not there any more), "unsupported",
            "needs_auth", "unreachable"; "unknown" before its first answer.
        detail: why, in ssh's or the host's words.
        known_since: when instructions and skills were read, in seconds since the epoch; None when they never were: then
            it is not known whether there are any.
        root: the root of the repository that the folder is in; None when it is in none.
        instructions: the files for agents, from the repository's root down to the folder.
        skills: what skills there are.
        memory: the workspace's own memory; None while it is not known where its home is.
        linked: the workspaces that are linked with it, as they were when they were looked at last.
        linked_memory: their memories, by their locations; those that have none are left out.
        problems: what could not be read or kept, a sentence each.
    """

    location: str
    host: str
    os: str | None = None
    arch: str | None = None
    state: str = UNKNOWN
    detail: str = ""
    known_since: float | None = None
    root: str | None = None
    instructions: tuple[Instruction, ...] = ()
    skills: tuple[Skill, ...] = ()
    memory: str | None = None
    linked: tuple[LinkedWorkspace, ...] = ()
    linked_memory: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def gone(self) -> tuple[str, ...]:
        """The locations of linked workspaces whose hosts say that their folders are gone."""
        return tuple(str(row.location) for row in self.linked if row.badge == GONE)

    @property
    def where(self) -> str:
        """Where code runs, in a line: `execute on gpu (Linux x86_64)`."""
        system = f"{self.os} {self.arch}" if self.os else "its system is not known yet"
        return f"execute on {self.host} ({system})"

    @property
    def text(self) -> str:
        """All of it as Markdown."""
        return _text(self)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON, `text`, `where` and `gone` included."""
        return {
            **asdict(self),
            "linked": [row.to_dict() for row in self.linked],
            "linked_memory": dict(self.linked_memory),
            "gone": list(self.gone),
            "where": self.where,
            "text": self.text,
        }


def compose(
    spelled: Location,
    home: str | os.PathLike[str] | None = None,
    memory_chars: int = MEMORY_CHARS,
    instruction_chars: int = INSTRUCTION_CHARS,
) -> WorkspaceContext:
    """Return what is known of a workspace; nobody is asked.

    Args:
        spelled: the workspace, maybe with a home that is not known yet.
        home: see `albedo_home`.
        memory_chars: for the memory of this and the linked workspaces together.
        instruction_chars: for all instructions together.

    Raises:
        ConfigError: what is on record here cannot be used.
    """
    location = known_absolute(spelled, home)
    name = spelled.host or "this machine"
    mirror = Mirror(home)
    seen = mirror.get(location or spelled)
    context = replace(_of_folder(location or spelled, name, seen, instruction_chars), detail=seen.detail)
    if location is not None:
        context = _with_memory(replace(context, linked=_linked(location, mirror, home)), location, home, memory_chars)
    if mirror.not_kept:
        problem = "What hosts say cannot be kept on this machine, and the next program begins without it: {}."
        context = replace(context, problems=(*context.problems, problem.format(mirror.not_kept)))
    return context


def _of_folder(location: Location, name: str, seen: Reflection, budget: int) -> WorkspaceContext:
    """Return what the host said of the folder."""
    facts = seen.facts or {}
    prefix = "" if location.host is None else f"{location.host}:"
    problems = [f"{prefix}{_shown(each['path'])}: {each['detail']}" for each in facts.get("problems", ())]
    if facts.get("late"):
        problems.append("The host's file system was slow, so something may be missing here.")
    skills = []
    for each in facts.get("skills", ()):
        where = prefix + _shown(each["path"])
        skill, problem = read_skill(each["text"], _shown(posixpath.basename(posixpath.dirname(each["path"]))), where)
        skills.append(skill)
        if problem and not each["cut"]:  # else it has been told that it is too long
            problems.append(f"{where}: {problem}")
    return WorkspaceContext(
        location=str(location),
        host=name,
        os=facts.get("os"),
        arch=facts.get("arch"),
        state=seen.state,
        known_since=seen.gathered,
        root=facts.get("root") and _shown(facts["root"]),
        instructions=tuple(_instructions(facts.get("files", ()), prefix, budget)),
        skills=tuple(skills),
        problems=tuple(problems),
    )


def _instructions(files: Sequence[dict[str, Any]], prefix: str, budget: int) -> list[Instruction]:
    """Return the instructions, those closest to the folder last; one text in two files is told once."""
    by_text: dict[str, str] = {}
    for each in files:
        text = each["text"].strip("\n")
        if text.strip():
            by_text.setdefault(text + ("\n[… the rest is left out …]" if each["cut"] else ""), each["path"])
    texts = list(by_text)
    given = shares([len(text) for text in reversed(texts)], budget)[::-1]  # the closest matter most
    return [
        Instruction(prefix + _shown(by_text[text]), shortened(text, size))
        for text, size in zip(texts, given, strict=True)
    ]


def _linked(location: Location, mirror: Mirror, home: str | os.PathLike[str] | None) -> tuple[LinkedWorkspace, ...]:
    rows = []
    for each in WorkspaceGroups(home).group(location):
        badge, detail = mirror.badge(each) or (UNKNOWN, "not looked at yet")
        rows.append(LinkedWorkspace(link_id(each), each, badge, detail))
    return tuple(rows)


def _with_memory(
    context: WorkspaceContext, location: Location, home: str | os.PathLike[str] | None, budget: int
) -> WorkspaceContext:
    problems = list(context.problems)
    memories: list[tuple[str, str]] = []
    for each in (location, *(row.location for row in context.linked)):
        try:
            text = MemoryStore(each, home).content().text.strip("\n")
        except MemoryFileError as error:
            text = ""
            problems.append(str(error))
        if text or each == location:
            memories.append((str(each), text))
    given = shares([len(text) for _, text in memories], budget)
    cut = [(where, shortened(text, size)) for (where, text), size in zip(memories, given, strict=True)]
    return replace(context, memory=cut[0][1], linked_memory=tuple(cut[1:]), problems=tuple(problems))


def _shown(path: str) -> str:
    """Return a path that can be printed, and looks like itself if it can."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in os.fsencode(path).decode("utf-8", "backslashreplace")
    )


# -- as a text -----------------------------------------------------------------------------------------------


def _text(context: WorkspaceContext) -> str:
    parts = ["# Where this runs", f"{context.where}, in {context.location}", *_state(context)]
    if context.instructions:
        parts.append("# Instructions")
        for each in context.instructions:
            parts += [f"## {each.location}", each.text]
    if context.skills:
        lines = [f"- {each.name}: {each.description} ({each.location})" for each in context.skills]
        parts += ["# Skills", "Read a skill's file before you use it.", "\n".join(lines)]
    parts += _memory(context)
    if context.linked:
        parts += ["# Linked workspaces", "\n".join(map(_row, context.linked))]
    if context.problems:
        parts += ["# What could not be read or kept", "\n".join(f"- {each}" for each in context.problems)]
    return "\n\n".join(parts) + "\n"


def _state(context: WorkspaceContext) -> list[str]:
    words = {
        FOLDER_GONE: f"The folder is not there any more: {context.detail}.",
        "ready": f"The folder cannot be read: {context.detail}." if context.detail else "",
    }.get(context.state, f"{context.host} could not be asked ({context.state}): {context.detail}.")
    if context.state == UNKNOWN:
        words = "The host has not answered yet: it is not known which instructions and skills there are."
    elif context.known_since is None:
        words += " It is not known which instructions and skills there are."
    elif context.state != "ready":
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(context.known_since))
        words += f" Instructions and skills are as they were on {since}."
    return [words.strip()] if words.strip() else []


def _memory(context: WorkspaceContext) -> list[str]:
    if context.memory is None:
        return ["# Memory", "It is not known yet where the host's home is, and so which memory belongs to this place."]
    parts = ["# Memory", context.memory or "(empty)"]
    for where, text in context.linked_memory:
        parts += [f"## Memory of {where} (linked)", text]
    return parts


def _row(row: LinkedWorkspace) -> str:
    return f"- {row.location}" + (f": {row.badge} ({row.detail})" if row.badge else "")
