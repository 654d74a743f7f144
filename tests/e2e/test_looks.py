"""One look after another: the process that answers on a host is kept for the next one, and is in nobody's way."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from door import Door
from faces import Embedded, Host, Real
from masters import Master
from procs import Process, everyone, send, wait_until

from albedo_provisioner import Hosts, Location, browse
from albedo_provisioner.errors import KilledError, NoSuchFolderError, NotAFolderError
from albedo_provisioner.hosts import asking, io_thread
from albedo_provisioner.workspace.asking import look_at


def lookers(host: Host) -> list[Process]:
    """Return the processes on a host that answer looks."""
    # Of this machine's they are children of ours, which `processes` does not tell.
    there = [each for each in everyone() if each.ppid == os.getpid()] if host.kind == "local" else host.processes()
    return [each for each in there if each.argv and each.argv[-1].startswith("albedo browse")]


def test_one_process_answers_all_of_them_errors_included(any_host: Host) -> None:
    for name in ("one", "two/three"):
        any_host.make_folder(f"proj/{name}")
    any_host.write("proj/file", "1")
    assert [entry.name for entry in browse.list(any_host.location("proj")).entries] == ["one", "two"]
    (first,) = lookers(any_host)
    with pytest.raises(NoSuchFolderError):
        browse.list(any_host.location("proj/none"))
    with pytest.raises(NotAFolderError):
        browse.preview(any_host.location("proj/file"))
    any_host.make_folder("proj/new")
    assert [entry.name for entry in browse.list(any_host.location("proj")).entries] == ["new", "one", "two"]
    assert browse.repo(any_host.location("proj")).kind is None
    assert lookers(any_host) == [first]


def test_a_look_after_another_costs_one_round_trip(embedded_host: Embedded) -> None:
    embedded_host.make_folder("proj/one")
    place = embedded_host.location("proj")
    browse.list(place)
    latency = 0.25  # in each direction
    embedded_host.server.behave(latency=latency)
    began = time.monotonic()
    assert [entry.name for entry in browse.list(place).entries] == ["one"]
    assert 2 * latency <= time.monotonic() - began < 4 * latency


def test_looks_side_by_side_do_not_wait_for_each_other(any_host: Host) -> None:
    places = [any_host.location(any_host.make_folder(name).name) for name in ("a", "b", "c", "d")]
    for _ in range(2):
        found = browse.list_all(places)
        assert [getattr(found[place], "entries", None) for place in places] == [()] * 4
    assert 1 <= len(lookers(any_host)) <= 2


@pytest.mark.parametrize("how", ["killed", "stopped", "cut", "half-open", "bundle removed"])
def test_one_that_is_lost_is_not_missed(sshd_host: Real, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(asking, "HEARD_TIMEOUT", 1.0)
    sshd_host.make_folder("proj/one")
    place = sshd_host.location("proj")
    browse.list(place)
    (first,) = lookers(sshd_host)
    if how == "killed":
        send(first, signal.SIGKILL)
    elif how == "stopped":
        send(first, signal.SIGSTOP)
    elif how == "cut":
        sshd_host.cut()
    elif how == "half-open":
        sshd_host.freeze()
    else:
        for path in (sshd_host.home / ".albedo-remote").iterdir():
            os.rename(path, path.with_name("gone"))
    try:
        assert [entry.name for entry in browse.list(place, timeout=20).entries] == ["one"]
    finally:
        if how == "stopped":
            send(first, signal.SIGKILL)
        sshd_host.thaw()
        for path in Path(sshd_host.home / ".albedo-remote").glob("gone"):
            path.rename(sshd_host.home / "gone")


def test_one_that_is_killed_while_it_looks_is_asked_again_once(
    remote_host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """And that is what is said when it is killed again: nothing is wrong with the host's Python."""
    remote_host.make_folder("proj/.git")
    remote_host.write("bin/git", f"#!/bin/sh\n[ -s {remote_host.home}/killed ] && exit 1\nkill -s KILL $PPID\n")
    (remote_host.home / "bin/git").chmod(0o755)
    profile = (remote_host.home / ".profile").read_text()
    remote_host.write(".profile", f"{profile}\nPATH={remote_host.home}/bin:$PATH\n")
    place = remote_host.location("proj")
    with caplog.at_level("INFO", "albedo_provisioner.hosts"):
        with pytest.raises(KilledError) as caught:
            browse.repo(place)
        assert caplog.text.count("Asking again") == 1
    assert f"Our process on {remote_host.alias} was ended by signal KILL before it had answered" in str(caught.value)
    assert "no Python" not in str(caught.value)
    assert caught.value.state == "unreachable"
    remote_host.write(
        "bin/git",
        f"#!/bin/sh\n[ -s {remote_host.home}/killed ] && exit 1\necho yes > ~/killed\nkill -s KILL $PPID\n",
    )
    assert browse.repo(place).problems  # the second one was told that git fails
    remote_host.write("killed", "")
    assert browse.preview(place).tree.files == 0


def test_a_question_whose_process_is_killed_is_asked_again(remote_host: Host) -> None:
    """Of those that no process is kept for: what a host is, and whether a folder is there."""
    mark = remote_host.home / "killed"
    first = f"[ -e {mark} ] || {{ echo > {mark}; kill -s KILL $$; }}"
    remote_host.write("bin/python3", f'#!/bin/sh\n{first}\nexec {remote_host.python} "$@"\n').chmod(0o755)
    profile = (remote_host.home / ".profile").read_text()
    remote_host.write(".profile", f"{profile}\nPATH={remote_host.home}/bin:$PATH\n")
    assert Hosts().probe(str(remote_host.alias)).state == "ready"
    assert mark.exists()
    mark.unlink()
    (row,) = io_thread.run_blocking(look_at([Location.parse(remote_host.location())]))
    assert (row.badge, row.detail) == ("", "")
    assert mark.exists()


def test_one_that_nobody_asks_ends(remote_host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "KEPT", 0.3)
    remote_host.make_folder("proj")
    browse.list(remote_host.location("proj"))
    wait_until(lambda: not lookers(remote_host), what="it has ended")


def test_one_whose_client_says_nothing_any_more_ends_by_itself(
    remote_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that was stopped, or a link that nobody knows to be dead, leaves no process there for ever."""
    monkeypatch.setattr(asking, "KEPT", 0.3)
    monkeypatch.setattr(asking._Asked, "close", lambda asked: None)
    remote_host.make_folder("proj")
    browse.list(remote_host.location("proj"))
    wait_until(lambda: not lookers(remote_host), what="it has ended")


def test_a_caller_who_gives_up_leaves_nothing_half_asked(remote_host: Host) -> None:
    """What the process was asked for is not taken for the answer to the next question."""
    remote_host.make_folder("proj/one")
    remote_host.make_folder("other/two")

    async def give_up() -> None:
        await browse.list_async(remote_host.location("proj"))
        look = asyncio.create_task(browse.preview_async(remote_host.location("proj")))
        await asyncio.sleep(0)
        look.cancel()
        await asyncio.wait([look])

    for _ in range(5):
        asyncio.run(give_up())
        assert [entry.name for entry in browse.list(remote_host.location("other")).entries] == ["two"]


def test_it_takes_no_room_on_a_connection_that_a_person_signed_in_to(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the server allows few sessions, a kernel would find none left."""
    door.write(ControlPath=f"{door.workspace.root}/%r@%h-%C")
    path = f"{door.workspace.root}/m"
    door.write("other", ControlPath=path)
    door.host.make_folder("proj")
    monkeypatch.setattr(asking, "KEPT", 600.0)
    with Master("other", path):
        door.host.server.reconfigure(PubkeyAuthentication="no")
        for _ in range(2):
            assert browse.list(f"other:{door.host.home}/proj").entries == ()
        wait_until(lambda: not lookers(door.host), what="none is kept")
    io_thread.run_blocking(asking.end_kept())
