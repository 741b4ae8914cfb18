"""What a process and a file use: from recorded trees, and of this process and its own files."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.paths import FIXTURES

from labkit.system import probe
from labkit.system._os import portable, residency
from labkit.system.probe import Residency
from labkit.units import KiB, MiB

if sys.platform != "win32":
    import resource

V2 = str(FIXTURES / "proc_v2")
PAGE = mmap.PAGESIZE


def live_on_linux(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that reads this computer's own /proc."""
    here = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads this computer's own /proc")
    return pytest.mark.live(here(test))


def test_process_from_a_recorded_tree() -> None:
    use = probe.process(4242, root=V2, smaps=True)
    assert use.rss_bytes == 5120000 * KiB
    assert use.rss_anon_bytes == 1048576 * KiB
    assert use.rss_file_bytes == 4069376 * KiB
    assert use.rss_shmem_bytes == 2048 * KiB
    assert use.pss_bytes == 4997120 * KiB
    assert use.locked_bytes == 204800 * KiB
    assert use.peak_rss_bytes == 5242880 * KiB
    assert (use.minor_faults, use.major_faults, use.faults) == (812345, 1234, 813579)  # its name holds spaces and ")"
    assert use.read_bytes == 4169531392
    assert use.reasons == {}


def test_pss_is_read_only_when_asked_for() -> None:
    use = probe.process(4242, root=V2)
    assert use.pss_bytes is None and "smaps=True" in use.reasons["pss_bytes"]
    assert set(use.reasons) == {"pss_bytes"}


def test_an_ended_process_has_no_memory_and_says_so() -> None:
    use = probe.process(4243, root=V2)
    assert use.rss_anon_bytes is None and use.reasons["rss_anon_bytes"] == "the process has ended"
    assert use.read_bytes is None and "owner" in use.reasons["read_bytes"]
    assert use.minor_faults == 700
    with pytest.raises(probe.ProcessGone, match="no process 4244"):
        probe.process(4244, root=V2)


def test_a_system_that_does_not_split_rss() -> None:
    use = probe.process(4242, root=str(FIXTURES / "proc_missing"), smaps=True)
    assert use.rss_bytes == 20480 * KiB
    missing = {field for field, value in vars(use).items() if value is None}
    assert missing == set(use.reasons)
    assert {"rss_anon_bytes", "rss_file_bytes", "pss_bytes", "read_bytes", "locked_bytes"} <= missing


def test_mapping_sums_the_file_and_not_its_neighbours() -> None:
    use = probe.mapping(4242, "/models/my model.gguf", root=V2)
    assert use.n_mappings == 2
    assert use.size_bytes == 1310720 * KiB
    assert use.resident_bytes == (524288 + 131072) * KiB
    assert use.pss_bytes == (262144 + 131072) * KiB
    assert use.anon_bytes == 8192 * KiB
    assert use.locked_bytes == 102400 * KiB
    assert use.reasons == {}
    absent = probe.mapping(4242, "/models/another.gguf", root=V2)
    assert (absent.n_mappings, absent.resident_bytes) == (0, 0)


def test_mapping_without_smaps_is_none_with_a_reason(tmp_path: Path) -> None:
    use = probe.mapping(1, "/a", root=str(tmp_path))
    assert use.size_bytes is None and set(use.reasons) == set(vars(use)) - {"reasons"}
    with pytest.raises(probe.ProcessGone):
        probe.mapping(4244, "/a", root=V2)


def test_oom_kills_of_the_system() -> None:
    assert probe.system_oom_kills(root=V2) == 3
    assert probe.system_oom_kills(root=str(FIXTURES / "proc_missing")) is None


def test_psutil_records_of_mac_and_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    mac = SimpleNamespace(rss=100 * MiB, vms=MiB, pfaults=5000, pageins=40)
    monkeypatch.setattr(psutil, "Process", lambda pid: SimpleNamespace(memory_info=lambda: mac))
    use = portable.process(7, system="macOS")
    assert (use.rss_bytes, use.minor_faults, use.major_faults, use.faults) == (100 * MiB, 4960, 40, 5000)
    assert use.rss_anon_bytes is None and "macOS" in use.reasons["rss_anon_bytes"]
    assert "read_bytes" in use.reasons and "faults" not in use.reasons

    windows = SimpleNamespace(rss=90 * MiB, num_page_faults=6000, peak_wset=120 * MiB)
    record = SimpleNamespace(
        memory_info=lambda: windows, io_counters=lambda: SimpleNamespace(read_bytes=77, write_bytes=1)
    )
    monkeypatch.setattr(psutil, "Process", lambda pid: record)
    use = portable.process(7, system="Windows")
    assert (use.rss_bytes, use.peak_rss_bytes, use.faults, use.read_bytes) == (90 * MiB, 120 * MiB, 6000, 77)
    assert use.minor_faults is None and use.major_faults is None

    def denied() -> None:
        raise psutil.AccessDenied(7)

    monkeypatch.setattr(psutil, "Process", lambda pid: SimpleNamespace(memory_info=denied))
    use = portable.process(7, system="macOS")
    assert use.rss_bytes is None and "owner" in use.reasons["rss_bytes"]

    def gone(pid: int) -> None:
        raise psutil.NoSuchProcess(pid)

    monkeypatch.setattr(psutil, "Process", gone)
    with pytest.raises(probe.ProcessGone):
        portable.process(7, system="macOS")


def test_residency_arithmetic() -> None:
    half = Residency(Path("f"), file_bytes=9 * 4096 + 100, page_bytes=4096, pages=bytes([1] * 5 + [0] * 4 + [1]))
    assert half.n_pages == 10
    assert half.resident_bytes == 5 * 4096 + 100  # the last page holds 100 bytes of the file
    assert half.resident.tolist() == [True] * 5 + [False] * 4 + [True]
    assert half.fractions(2) == [1.0, 0.2]
    assert half.fractions(4) == [1.0, 1.0, 0.0, pytest.approx(1 / 3)]
    assert half.fractions(99) == [1.0] * 5 + [0.0] * 4 + [1.0]
    empty = Residency(Path("f"), 0, 4096, b"")
    assert (empty.n_pages, empty.resident_bytes, empty.fractions(5)) == (0, 0, [])
    unknown = Residency(Path("f"), 8192, 4096, None, "nobody says")
    assert unknown.resident_bytes is None and unknown.n_pages == 2
    for ask in (lambda: unknown.resident, lambda: unknown.fractions(2)):
        with pytest.raises(OSError, match="nobody says"):
            ask()


# This computer


@live_on_linux
def test_live_process_agrees_with_the_kernel() -> None:
    use = probe.process(os.getpid(), smaps=True)
    assert use.reasons == {} or set(use.reasons) <= {"read_bytes", "pss_bytes"}
    assert use.rss_bytes is not None and use.rss_anon_bytes is not None and use.rss_file_bytes is not None
    assert use.rss_bytes == use.rss_anon_bytes + use.rss_file_bytes + (use.rss_shmem_bytes or 0)
    assert use.peak_rss_bytes is not None and use.peak_rss_bytes >= use.rss_bytes
    later = resource.getrusage(resource.RUSAGE_SELF)
    assert use.minor_faults is not None and 0 < use.minor_faults <= later.ru_minflt
    assert use.major_faults is not None and use.major_faults <= later.ru_majflt
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with pytest.raises(probe.ProcessGone):
        probe.process(gone.pid)


@live_on_linux
def test_live_anonymous_memory_is_counted() -> None:
    before = probe.process(os.getpid()).rss_anon_bytes  # mmap, since malloc may reuse resident pages
    with mmap.mmap(-1, 64 * MiB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block.write(bytes(64 * MiB))
        after = probe.process(os.getpid()).rss_anon_bytes
    assert before is not None and after is not None
    assert after - before == pytest.approx(64 * MiB, abs=8 * MiB)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of 1000 pages and a bit, on disk and not in the page cache."""
    path = tmp_path / "data"
    path.write_bytes(os.urandom(1000 * PAGE + 123))
    evicted = probe.evict(path)
    if evicted.after_bytes != 0:
        pytest.skip("the temporary folder is on a file system that lives in memory")
    return path


@live_on_linux
def test_evict_then_read_then_evict(file: Path) -> None:
    size = file.stat().st_size
    assert probe.page_cache(file).resident_bytes == 0
    with open(file, "rb") as stream:
        stream.read()
    full = probe.page_cache(file)
    assert (full.n_pages, full.resident_bytes) == (1001, size)
    assert full.resident.dtype == np.bool_ and full.resident.shape == (1001,) and full.resident.all()
    part = probe.evict(file, offset=512 * PAGE)
    assert part.before_bytes == size and part.after_bytes == 512 * PAGE
    assert probe.page_cache(file).resident.tolist() == [True] * 512 + [False] * 489
    assert probe.evict(file) == probe.Evicted(512 * PAGE, 0)


@live_on_linux
def test_page_cache_sees_exactly_the_pages_touched(file: Path) -> None:
    touched = [3, 100, 101, 999, 1000]
    with open(file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        mapped.madvise(mmap.MADV_RANDOM)  # no readahead
        for page in touched:
            mapped[page * PAGE]
        assert np.flatnonzero(probe.page_cache(file).resident).tolist() == touched
        assert np.flatnonzero(probe.mapped_pages(os.getpid(), file).resident).tolist() == touched
        use = probe.mapping(os.getpid(), file)
        assert (use.n_mappings, use.size_bytes) == (1, 1001 * PAGE)
        assert use.resident_bytes == len(touched) * PAGE
        # in the page cache by read(), and still not in this process's page tables
        stream.read(50 * PAGE)
        assert probe.page_cache(file).pages[:50] == b"\1" * 50
        assert np.flatnonzero(probe.mapped_pages(os.getpid(), file).resident).tolist() == touched
    assert probe.mapped_pages(os.getpid(), file).resident_bytes == 0
    assert probe.mapping(os.getpid(), file).n_mappings == 0


@live_on_linux
def test_mapped_pages_of_a_mapping_that_starts_inside_the_file(file: Path) -> None:
    with open(file, "rb") as stream:
        granule = mmap.ALLOCATIONGRANULARITY
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ, offset=10 * granule) as mapped:
            mapped.madvise(mmap.MADV_RANDOM)
            mapped[0], mapped[5 * PAGE]
            first = 10 * granule // PAGE
            assert np.flatnonzero(probe.mapped_pages(os.getpid(), file).resident).tolist() == [first, first + 5]


@live_on_linux
def test_page_cache_with_and_without_cachestat(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "_PIECE_BYTES", 64 * PAGE)
    with open(file, "rb") as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for page in (0, 63, 64, 700):
            os.pread(stream.fileno(), 1, page * PAGE)
    quick = probe.page_cache(file)
    monkeypatch.setattr(residency, "_SYS_CACHESTAT", -1)  # as on a kernel before 6.5
    assert probe.page_cache(file).pages == quick.pages
    assert np.flatnonzero(quick.resident).tolist() == [0, 63, 64, 700]


@live_on_linux
def test_page_cache_of_a_40_gib_file_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "big"
    with open(path, "wb") as stream:
        stream.truncate(40 << 30)
        stream.seek((20 << 30) + 5 * PAGE)
        stream.write(b"x")
        stream.flush()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        residency_now = probe.page_cache(path)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    assert residency_now.n_pages == (40 << 30) // PAGE
    assert np.flatnonzero(residency_now.resident).tolist() == [(20 << 30) // PAGE + 5]
    assert grown * KiB < 64 * MiB


@live_on_linux
def test_page_cache_is_not_guessed_for_another_users_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = probe.page_cache(file)
    assert found.pages is None and found.resident_bytes is None
    assert found.reason is not None and "owner" in found.reason
    evicted = probe.evict(file)
    assert (evicted.before_bytes, evicted.after_bytes, evicted.reason) == (None, None, found.reason)


@live_on_linux
def test_missing_files_and_processes(tmp_path: Path, file: Path) -> None:
    for ask in (probe.page_cache, probe.evict):
        with pytest.raises(FileNotFoundError):
            ask(tmp_path / "absent")
    with pytest.raises(probe.ProcessGone):
        probe.mapped_pages(1 << 22, file)
    (tmp_path / "empty").touch()
    assert probe.page_cache(tmp_path / "empty").resident_bytes == 0
