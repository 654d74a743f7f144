"""A name that stands for several machines, with a home in common or not: a kernel on one is not dead on the others."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from crash import albedo, crash, listed
from faces import Embedded
from kernels import add_kernelspec, eventually, started

from albedo_provisioner import Hosts
from albedo_provisioner.kernels.records import KernelRecords

PROFILE = """
if [ "$ALBEDO_RUN" ] && [ -r {home}/node ]; then
    if [ "$(cat {home}/node)" = node-b ] && [ -d {home}/apart ]; then export HOME={home}/apart; fi
    exec unshare --uts /bin/sh -c 'hostname "$(cat {home}/node)" && exec /bin/sh -c "$ALBEDO_RUN"'
fi
"""


@pytest.fixture
def cluster(embedded_host: Embedded) -> Embedded:
    """Return a host whose logins land on the machine that the file `node` in its home names."""
    can = shutil.which("unshare") and subprocess.run(["unshare", "--uts", "hostname", "x"], check=False).returncode == 0
    if not can:
        pytest.skip("other names for the machine take root and unshare")
    profile = (embedded_host.home / ".profile").read_text()
    embedded_host.write(".profile", profile + PROFILE.format(home=embedded_host.home))
    land_on(embedded_host, "node-a")
    return embedded_host


def land_on(host: Embedded, node: str) -> None:
    host.write("node", node)


async def test_a_link_that_lands_on_another_machine_waits_for_the_right_one(cluster: Embedded) -> None:
    async with started(cluster.location()) as kernel:
        assert await kernel.json("os.uname().nodename", "import os") == "node-a"
        await kernel.run("x = 41")
        land_on(cluster, "node-b")
        cluster.cut()
        await eventually(lambda: "node-b" in str(kernel.status["away"]))
        assert "runs on node-a" in str(kernel.status["away"])
        assert await kernel.manager.is_alive()
        land_on(cluster, "node-a")
        await eventually(lambda: kernel.status["step"] == "attached")
        assert await kernel.value("x") == "41"
        assert KernelRecords().node(kernel.manager.kernel_id) == "node-a"


@pytest.mark.parametrize("shared", [True, False])
def test_a_kernel_that_another_process_left_is_not_taken_for_gone(
    cluster: Embedded, tmp_path: Path, shared: bool
) -> None:
    crash(add_kernelspec(cluster.location()), tmp_path / "a.ipynb", [(None, "print('BEGUN')")])
    (kernel,) = listed()
    assert kernel["state"] == "idle"
    land_on(cluster, "node-b")
    if not shared:
        cluster.make_folder("apart")
    (kernel,) = listed()
    assert (kernel["state"], kernel["note"]) == ("unknown", "it runs on node-a")
    if shared:
        kernels = Hosts().diagnose(str(cluster.alias)).finding("kernels")
        assert kernels is not None
        assert kernels.text == "no kernels there (node-b); 1 kernel with this home on node-a"
    said = albedo("stop", kernel["kernel_id"], status=1)
    assert "runs on node-a" in said
    assert cluster.processes() != []
    (kernel,) = listed()
    assert kernel["state"] == "ending"
    land_on(cluster, "node-a")
    albedo("kernels")
    assert cluster.processes() == []
    assert listed() == []


def test_the_place_of_a_kernel_is_forgotten_with_it(cluster: Embedded, tmp_path: Path) -> None:
    crash(add_kernelspec(cluster.location()), tmp_path / "a.ipynb", [(None, "print('BEGUN')")])
    (kernel,) = listed()
    records = KernelRecords()
    assert records.node(kernel["kernel_id"]) == "node-a"
    albedo("stop", kernel["kernel_id"])
    assert records.node(kernel["kernel_id"]) == ""
