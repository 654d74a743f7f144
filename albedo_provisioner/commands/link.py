"""`jupyter albedo link`: workspaces that know each other."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from ..location import place
from .memory import location, with_home
from .table import print_table, say
from .waiting import waiting

if TYPE_CHECKING:
    from ..workspace.asking import LinkedWorkspace

_DESCRIPTION = """\
Link workspaces: folders on whatever hosts that belong to one project. What is read of the memory of one covers those of
all that are linked with it, and agents are told of them.
"""

_LIST_DESCRIPTION = """\
List the groups of linked workspaces, or the one of a location. All folders are looked at, at the same time, for five
seconds at most. The state is empty when the folder is there, "gone" when its host says that it is not, "no permission"
when the account may not enter it, else "unreachable", "sign in" or "connecting": then nothing is known of the folder.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "link", help="link workspaces with each other", description=_DESCRIPTION, allow_abbrev=False
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    add = actions.add_parser("add", help="link two workspaces; their groups become one", allow_abbrev=False)
    add.add_argument("one", metavar="LOCATION", type=location)
    add.add_argument("other", metavar="LOCATION", type=location)
    add.set_defaults(run=_add)
    remove = actions.add_parser("remove", help="take a workspace out of its group", allow_abbrev=False)
    remove.add_argument("member", metavar="LOCATION", help="the workspace, or its id as `list` shows it")
    remove.set_defaults(run=_remove)
    help_ = "list linked workspaces, and whether they are there"
    show = actions.add_parser("list", help=help_, description=_LIST_DESCRIPTION, allow_abbrev=False)
    show.add_argument("of", metavar="LOCATION", nargs="?", type=location, help="only the group of this workspace")
    show.add_argument("--json", action="store_true", help="as JSON, for programs")
    show.set_defaults(run=_list)


def _add(arguments: argparse.Namespace) -> int:
    from ..workspace.links import WorkspaceGroups

    one, other = with_home(arguments.one), with_home(arguments.other)
    WorkspaceGroups().link(one, other)
    say(f"Linked {one} with {other}")
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    from ..workspace.links import WorkspaceGroups, link_id

    groups = WorkspaceGroups()
    known = {link_id(each): each for group in groups.groups() for each in group}
    member = known.get(arguments.member) or with_home(place(arguments.member))
    groups.unlink(member)
    say(f"{member} is not linked any more")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    from ..hosts import io_thread
    from ..workspace.asking import look_at
    from ..workspace.links import WorkspaceGroups

    wanted = None if arguments.of is None else with_home(arguments.of)

    async def look() -> list[tuple[int, LinkedWorkspace]]:
        groups = WorkspaceGroups().groups()
        if wanted is not None:
            groups = [group for group in groups if wanted in group]
        numbers = [number for number, group in enumerate(groups, 1) for _ in group]
        return list(zip(numbers, await look_at([each for group in groups for each in group]), strict=True))

    with waiting("looking whether the linked folders are there ..."):
        rows = io_thread.run_blocking(look())
    if arguments.json:
        print(json.dumps([{"group": number, **row.to_dict()} for number, row in rows], indent=2, ensure_ascii=False))
    elif rows:
        print_table(
            ("ID", "GROUP", "LOCATION", "STATE", "DETAIL"),
            [(row.id, str(number), str(row.location), row.badge, row.detail) for number, row in rows],
        )
    else:
        say("No workspaces are linked; link two with: jupyter albedo link add LOCATION LOCATION")
    return 0
