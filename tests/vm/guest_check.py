"""Runs inside the emulated machine, with the standard library alone: caps, limits and residency on cgroup v2.

Prints one JSON object. It checks nothing itself, so that the test outside can show what was seen.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from labkit.system import caps, probe
from labkit.system.machine import machine

MIB = 1 << 20
GREEDY = "block = bytearray(140 << 20); block[::4096] = b'x' * len(block[::4096]); print('survived')"
READER = """
import mmap, os, resource, sys
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
    for _ in range(3):
        total = sum(mapped[at] for at in range(0, len(mapped), 4096))
print("survived", total, resource.getrusage(resource.RUSAGE_SELF).ru_majflt)
"""
INSIDE = "from labkit.system.machine import machine; m = machine(); print(m.limit_bytes, m.limit_by)"


def capped(limit_bytes: int, code: str, *arguments: str) -> dict[str, Any]:
    """Run Python code under a cap, looking at the cap while it runs, as an experiment does."""
    with caps.Cap(limit_bytes) as cap:
        child = subprocess.Popen(
            cap.command([sys.executable, "-c", code, *arguments]), stdout=subprocess.PIPE, text=True
        )
        peak = 0
        while True:
            try:
                child.wait(0.05)
                break
            except subprocess.TimeoutExpired:
                peak = max(peak, cap.stats().current_bytes or 0)
        said = child.stdout.read() if child.stdout else ""
        stats = cap.stats()
    return {
        "status": child.returncode,
        "said": said,
        "limit_bytes": stats.limit_bytes,
        "oom_kills": stats.oom_kills,
        "limit_hits": stats.limit_hits,
        "refault_bytes": stats.refault_bytes,
        "peak_seen_bytes": peak,
        "peak_bytes": stats.peak_bytes,
        "reasons": dict(stats.reasons),
        "gone": not cap.path.exists(),
    }


def left_behind() -> list[str]:
    groups = [str(path) for path in Path("/sys/fs/cgroup").rglob("labkit-*")]
    units = subprocess.run(
        ["systemctl", "--user", "list-units", "--all", "--plain", "--no-legend", "labkit-*"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    files = [str(path) for path in Path(tempfile.gettempdir()).glob("*labkit*")]
    return groups + units + files


def main() -> None:
    here, method = machine(), caps.available()
    report: dict[str, Any] = {
        "uid": os.getuid(),
        "cgroup": Path("/proc/self/cgroup").read_text().strip(),
        "machine": here.to_dict(),
        "how": method.how,
        "why": method.reason,
        "greedy": capped(100 * MIB, GREEDY),
        "modest": capped(200 * MIB, GREEDY),
        "inside": capped(300 * MIB, INSIDE)["said"],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mapped"
        with open(path, "wb") as file:
            for _ in range(150):
                file.write(b"\1" * MIB)
        evicted = probe.evict(path)
        report["evicted"] = [evicted.before_bytes, evicted.after_bytes]
        report["mapped"] = capped(100 * MIB, READER, str(path))
        report["cached_after"] = probe.page_cache(path).resident_bytes
    use = probe.process(os.getpid(), smaps=True)
    report["process"] = {name: value for name, value in vars(use).items() if name != "reasons"}
    report["left_behind"] = left_behind()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
