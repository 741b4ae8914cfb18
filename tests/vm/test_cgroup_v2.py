"""Caps and limits on cgroup v2 with systemd, in an emulated machine. Opt-in: LABKIT_VM=1 (a minute a run)."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import debian_vm
from support.paths import ROOT

MIB = 1 << 20
# What the machine has Python for: these run with the standard library alone.
MODULES = ("units.py", "machine.py", "bandwidth.py", "progress.py", "probe.py", "caps.py", "capstats.py", "_os")

pytestmark = pytest.mark.skipif(
    os.environ.get("LABKIT_VM") != "1", reason="set LABKIT_VM=1 to emulate a cgroup v2 machine (slow)"
)


CHECK = "python3 guest_check.py"
COMMANDS = {
    "user": CHECK,
    "bare-user": f"env -u XDG_RUNTIME_DIR -u DBUS_SESSION_BUS_ADDRESS {CHECK}",  # as a spawner may start it
    "root": CHECK,
}


@pytest.fixture(scope="module", params=list(COMMANDS))
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    lacking = debian_vm.missing()
    if lacking:
        pytest.skip(lacking)
    folder = tmp_path_factory.mktemp("guest")
    package = folder / "labkit"
    package.mkdir()
    (package / "__init__.py").touch()  # the real one loads what the machine has not got
    for name in MODULES:
        source = ROOT / "labkit" / name
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, package / name)
    shutil.copyfile(Path(__file__).with_name("guest_check.py"), folder / "guest_check.py")
    done = debian_vm.run(folder, COMMANDS[request.param], as_root=request.param == "root")
    assert done.status == 0, done.output
    report: dict[str, Any] = json.loads(done.output.splitlines()[-1])
    print(json.dumps(report, indent=1))
    return report


def test_who_runs_where(seen: dict[str, Any]) -> None:
    if seen["uid"] == 0:
        assert (seen["how"], seen["cgroup"]) == ("cgroup-v2", "0::/system.slice/check-root.service")
    else:
        assert seen["how"] == "systemd-scope"
        assert seen["cgroup"].startswith("0::/user.slice/user-1000.slice/session-")


def test_the_limit_is_read_from_an_ancestor(seen: dict[str, Any]) -> None:
    here = seen["machine"]
    if seen["uid"] == 0:
        assert here["limit_by"] == "MemTotal"
    else:
        assert here["limit_by"] == "cgroup v2 /user.slice/user-1000.slice"
        assert here["limit_bytes"] == debian_vm.SESSION_LIMIT_MIB * MIB < here["ram_bytes"]
    size, by = seen["inside"].split(" ", 1)
    assert int(size) == 300 * MIB and "/labkit-" in by


def test_anonymous_memory_above_the_cap_is_death(seen: dict[str, Any]) -> None:
    greedy, modest = seen["greedy"], seen["modest"]
    assert greedy["status"] in (-9, 137) and greedy["said"] == ""
    assert greedy["oom_kills"] == 1
    assert greedy["limit_bytes"] == 100 * MIB
    assert (modest["status"], modest["said"]) == (0, "survived\n")
    assert not modest["oom_kills"]


def test_a_mapped_file_larger_than_the_cap_only_gives_way(seen: dict[str, Any]) -> None:
    mapped = seen["mapped"]
    assert mapped["status"] == 0 and not mapped["oom_kills"]
    word, total, major_faults = mapped["said"].split()
    assert (word, int(total)) == ("survived", 150 * MIB // 4096)
    assert int(major_faults) > 300
    assert 50 * MIB < mapped["peak_seen_bytes"] <= 101 * MIB  # the kernel charges in batches
    assert seen["evicted"] == [150 * MIB, 0]
    assert 0 < seen["cached_after"] <= 101 * MIB


def test_nothing_is_left_behind(seen: dict[str, Any]) -> None:
    assert seen["left_behind"] == []
    assert seen["greedy"]["gone"] and seen["modest"]["gone"] and seen["mapped"]["gone"]


def test_figures_of_a_process(seen: dict[str, Any]) -> None:
    use = seen["process"]
    assert None not in use.values()
    assert use["rss_bytes"] == use["rss_anon_bytes"] + use["rss_file_bytes"] + use["rss_shmem_bytes"]
    assert 0 < use["pss_bytes"] <= use["rss_bytes"] * 1.01
