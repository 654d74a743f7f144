"""Which hosts there are and what they are: `Hosts`, `AsyncHosts` and `jupyter albedo hosts`."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from crash import albedo
from faces import Embedded, Host, Real
from kernels import add_kernelspec, eventually, started

from albedo_provisioner import AsyncHosts, Hosts
from albedo_provisioner.errors import LocationError
from albedo_provisioner.hosts import probe

if TYPE_CHECKING:
    from conftest import Workspace


@pytest.fixture
def late_refuser() -> Iterator[int]:
    """Listen on a port where every caller is hung up on after 3 s, without a word; return the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Timer(3, connection.close).start()

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


class TestProbe:
    @pytest.mark.first_visit
    def test_a_host_that_is_ready_says_what_it_is(self, any_host: Host) -> None:
        """H1."""
        state = Hosts().probe(any_host.alias or ".")
        assert (state.state, state.detail, state.advice) == ("ready", "", "")
        assert (state.os, state.arch) == (os.uname().sysname, os.uname().machine)
        assert state.home == str(any_host.home)
        assert state.cores == len(os.sched_getaffinity(0))
        assert state.python is not None
        assert state.python_version is not None
        assert f"Python {state.python_version}" in any_host.run([state.python, "--version"]).stdout
        assert json.loads(json.dumps(state.to_dict()))["state"] == "ready"
        assert not (any_host.home / ".albedo-remote").exists()

    def test_an_old_python_is_unsupported_and_said(self, embedded_host: Embedded) -> None:
        """H1."""
        embedded_host.write_old_python("old/python3")
        profile = (embedded_host.home / ".profile").read_text()
        embedded_host.write(".profile", f"{profile}\nPATH={embedded_host.home}/old:$PATH\n")
        state = Hosts().probe(str(embedded_host.alias))
        assert state.state == "unsupported"
        assert "3.8.2" in state.detail
        assert "python >= 3.11" in state.detail
        assert state.os == os.uname().sysname

    def test_no_python_at_all_is_unsupported_and_said(self, embedded_host: Embedded) -> None:
        """H1."""
        profile = (embedded_host.home / ".profile").read_text()
        embedded_host.write(".profile", f"{profile}\nPATH=/nowhere\n")
        state = Hosts().probe(str(embedded_host.alias))
        assert state.state == "unsupported"
        assert "python >= 3.11" in state.advice

    def test_a_host_that_does_not_take_our_key_needs_auth(self, embedded_host: Embedded) -> None:
        """H1."""
        embedded_host.server.behave(refuse_auth=True)
        state = Hosts().probe(str(embedded_host.alias))
        assert state.state == "needs_auth"
        assert "Permission denied" in state.detail
        assert str(embedded_host.alias) in state.advice

    def test_a_host_that_is_down_is_unreachable_in_sshs_words(self, remote_host: Host) -> None:
        """H1."""
        remote_host.down()
        state = Hosts().probe(str(remote_host.alias))
        assert state.state == "unreachable"
        assert "refused" in state.detail

    def test_an_account_that_may_run_nothing_is_unsupported(self, sshd_host: Real) -> None:
        """H1."""
        sshd_host.account.set_shell("/usr/sbin/nologin")
        state = Hosts().probe(str(sshd_host.alias))
        assert state.state == "unsupported"
        assert "not available" in state.advice

    def test_a_broken_config_is_said(self, workspace: Workspace) -> None:
        workspace.add_to_ssh_config("Host broken\n    Port many\n")
        state = Hosts().probe("broken")
        assert state.state == "unreachable"
        assert "config" in state.advice

    @pytest.mark.parametrize("text", ["-oProxyCommand=id", "", "a b", "gpu;id", "$(id)", "a/b"])
    def test_what_is_no_host_is_refused(self, text: str) -> None:
        with pytest.raises(LocationError):
            Hosts().probe(text)

    def test_a_host_that_never_answers_is_given_up_in_time(self, embedded_host: Embedded) -> None:
        profile = (embedded_host.home / ".profile").read_text()
        embedded_host.write(".profile", f"{profile}\nsleep 30\n")
        began = time.monotonic()
        state = Hosts(timeout=2).probe(str(embedded_host.alias))
        assert time.monotonic() - began < 6
        assert (state.state, state.detail) == ("unreachable", "no answer within 2 s, while asking")
        assert "It let us in; `jupyter albedo doctor " in state.advice
        embedded_host.clear()  # it goes on being asked, for the next who wants to know


class TestAnswersAreShared:
    def test_a_good_one_is_kept_and_a_fresh_one_can_be_had(self, embedded_host: Embedded) -> None:
        """H2."""
        hosts = Hosts()
        first = hosts.probe(str(embedded_host.alias))
        assert hosts.probe(str(embedded_host.alias)) is first
        assert Hosts().probe(str(embedded_host.alias)) is first
        assert hosts.probe(str(embedded_host.alias), fresh=True).asked > first.asked

    def test_each_for_its_time(self, embedded_host: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
        """H2: the real times are a minute and five seconds."""
        assert (probe.READY_FOR, probe.FAILED_FOR) == (60, 5)
        monkeypatch.setattr(probe, "FAILED_FOR", 0.5)
        hosts = Hosts()
        embedded_host.down()
        first = hosts.probe(str(embedded_host.alias))
        embedded_host.up()
        assert hosts.probe(str(embedded_host.alias)) is first
        time.sleep(0.5)  # the time that it is believed for
        assert hosts.probe(str(embedded_host.alias)).state == "ready"
        embedded_host.down()
        assert hosts.probe(str(embedded_host.alias)).state == "ready"

    async def test_callers_at_the_same_time_ask_once(self, embedded_host: Embedded) -> None:
        """H2."""
        embedded_host.server.behave(auth_delay=0.5)
        before = embedded_host.server.accepted()
        states = await asyncio.gather(*(AsyncHosts().probe(str(embedded_host.alias)) for _ in range(5)))
        assert all(state is states[0] for state in states)
        assert embedded_host.server.accepted() == before + 1

    async def test_one_who_gives_up_takes_nothing_from_the_other(self, embedded_host: Embedded) -> None:
        """H2."""
        embedded_host.server.behave(auth_delay=1.0)
        patient = asyncio.create_task(AsyncHosts().probe(str(embedded_host.alias)))
        hasty = await AsyncHosts(timeout=0.2).probe(str(embedded_host.alias))
        assert (hasty.state, hasty.detail) == ("unreachable", "no answer within 0.2 s, while connecting")
        assert (await patient).state == "ready"

    def test_a_fault_of_ours_at_one_host_costs_the_others_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """H3."""
        real = probe.ask

        async def ask(host: str | None, request: dict[str, Any]) -> dict[str, Any]:
            if host == "broken":
                raise RecursionError("too deep")
            return await real(host, request)

        monkeypatch.setattr(probe, "ask", ask)
        states = Hosts().probe_all(["broken", "."], fresh=True)
        assert states["."].state == "ready"
        assert states["broken"].state == "unreachable"
        assert states["broken"].detail == "RecursionError: too deep"
        assert "broken could not be asked: RecursionError: too deep. That is a fault of" in states["broken"].advice

    async def test_hosts_are_asked_side_by_side(self, workspace: Workspace, late_refuser: int) -> None:
        """H6."""
        for name in ("slow1", "slow2", "slow3"):
            workspace.add_to_ssh_config(f"Host {name}\n    HostName 127.0.0.1\n    Port {late_refuser}\n")
        began = time.monotonic()
        states = await AsyncHosts().probe_all(["slow1", "slow2", "slow3"])
        assert 2.9 < time.monotonic() - began < 5.5
        assert [state.state for state in states.values()] == ["unreachable"] * 3


class TestStatus:
    @pytest.mark.first_visit
    async def test_tells_the_step_of_a_first_visit_while_it_lasts(self, embedded_host: Embedded) -> None:
        """K2."""
        embedded_host.server.behave(auth_delay=0.3, latency=0.05)
        name, hosts = str(embedded_host.alias), AsyncHosts()
        assert (await hosts.status(name)).step is None
        seen: list[str | None] = []

        async def watch() -> None:
            while True:
                step = (await hosts.status(name)).step
                if step not in seen[-1:]:
                    seen.append(step)
                await asyncio.sleep(0.002)

        watching = asyncio.create_task(watch())
        async with started(embedded_host.location()):
            await eventually(lambda: len(seen) > 3)
            assert [step for step in seen if step][:3] == ["connecting", "staging", "starting"]
            assert seen[-1] is None
        watching.cancel()
        assert (await hosts.status(name)).last is None
        state = await hosts.probe(name)
        assert (await hosts.status(name)).last is state


class TestList:
    def test_has_the_recent_ones_first_and_then_those_of_the_config(self, workspace: Workspace) -> None:
        """H3: of the config and what it includes, no patterns, no repeats."""
        more = workspace.root / "more config"
        more.write_text('Host deep "quoted"\nHost gpu # again\n')
        workspace.add_to_ssh_config(
            f'Host gpu lab2 *.example.org !bad gp?\n    Port 1\nInclude "{more}" {workspace.root}/nothing*\n'
            "host=lower\nMatch host x\n    Include /dev/null\nHost *\n    User ann\nHost -oops\n"
        )
        assert [host.host for host in Hosts().list()] == ["gpu", "lab2", "deep", "quoted", "lower"]
        assert {host.source for host in Hosts().list()} == {"config"}

    def test_a_file_that_includes_itself_comes_to_an_end(self, workspace: Workspace) -> None:
        workspace.add_to_ssh_config(f"Host one\nInclude {workspace.ssh_config}\nHost two\n")
        assert [host.host for host in Hosts().list()] == ["one", "two"]

    async def test_what_was_used_last_comes_first_and_nothing_is_asked(
        self, embedded_host: Embedded, workspace: Workspace
    ) -> None:
        """H3."""
        workspace.add_to_ssh_config("Host zzz aaa\n")
        name = str(embedded_host.alias)
        async with started(embedded_host.location()):
            pass
        before = embedded_host.server.accepted()
        await eventually(lambda: Hosts().list()[0].source == "recent")
        listed = Hosts().list()
        assert [host.host for host in listed] == [name, "zzz", "aaa"]
        assert time.time() - 60 < (listed[0].used or 0) <= time.time()
        assert embedded_host.server.accepted() == before

    def test_adding_a_kernel_is_a_use_and_removing_it_is_not(self, embedded_host: Embedded) -> None:
        add_kernelspec(embedded_host.location())
        assert [host.source for host in Hosts().list()] == ["config"]
        albedo("add", embedded_host.location(), "--python", str(embedded_host.python), "--name", "other")
        assert [host.source for host in Hosts().list()] == ["recent"]


class TestCommand:
    def test_lists_without_asking(self, embedded_host: Embedded) -> None:
        before = embedded_host.server.accepted()
        head, row = albedo("hosts").splitlines()
        assert head.split() == ["HOST", "LAST", "USED"]
        assert row.split() == [embedded_host.alias, "-"]
        assert embedded_host.server.accepted() == before

    def test_asks_those_that_are_named_or_all(self, embedded_host: Embedded, workspace: Workspace) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            workspace.add_to_ssh_config(f"Host shut\n    HostName 127.0.0.1\n    Port {unused.getsockname()[1]}\n")
            text = albedo("hosts", "--probe")
            states = json.loads(albedo("hosts", str(embedded_host.alias), "shut", ".", "--json"))
        lines = text.splitlines()
        assert lines[0].split() == ["HOST", "STATE", "SYSTEM", "CORES", "PYTHON", "DETAIL"]
        assert lines[1].split()[:2] == [embedded_host.alias, "ready"]
        assert lines[2].split()[:2] == ["shut", "unreachable"]
        assert "cannot be reached: connection refused" in lines[3]
        assert [(state["host"], state["state"]) for state in states] == [
            (embedded_host.alias, "ready"),
            ("shut", "unreachable"),
            (".", "ready"),
        ]
