"""What a lock covers, whether it is allowed, and where it kills: predicted, and compared with the kernel's figures."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.small import small

from labkit import engine, gguf, predict
from labkit.experiments.measure import measure
from labkit.experiments.run import Run
from labkit.gguf import Header
from labkit.models.forge import forge
from labkit.predict import Lock
from labkit.settings import Settings
from labkit.system import memlock
from labkit.system.machine import Machine, machine
from labkit.units import KiB, MiB

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads VmLck")
HERE = machine()
LOCKS = pytest.mark.skipif((HERE.lockable_bytes or 0) < 400 * MiB, reason="this user may lock little memory")
PAGE = HERE.page_bytes


def quiet(share: float, text: str) -> None:
    pass


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 MiB, less than any system's default limit."""
    narrow = {"embedding_length": 512, "attention_head_count_kv": 2, "feed_forward_length": 1024, "vocab_size": 512}
    shape = small(attention_head_count=8, **narrow)
    return forge(shape, "Q8_0", path=tmp_path_factory.mktemp("tiny") / "tiny.gguf").path


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return forge(small(), "Q4_0", path=tmp_path_factory.mktemp("lock") / "small.gguf").path


def ask(header: Header, here: Machine = HERE, *, memlock_bytes: int | None = None, **settings: object) -> Lock:
    wanted = Settings.of({"repack": False, "load_mode": "mmap+mlock", **settings})
    features = engine.cpu_features()
    return predict.lock(header, wanted, machine=here, cpu_features=features, memlock_bytes=memlock_bytes)


def run(model: Path | str, **options: object) -> Run:
    given = {"repack": False, "load_mode": "mmap+mlock", "n_threads": 1, "n_ctx": 256, "tokens": 1, **options}
    return measure(model, progress=quiet, **given)


def vm_lck(made: Run) -> int:
    assert made.ok, made.reason
    assert made.measured is not None and made.measured.locked_bytes is not None
    return made.measured.locked_bytes


# What it covers


@LINUX
@LOCKS
@pytest.mark.parametrize("repack", [True, False])
@pytest.mark.parametrize("load_mode", ["none", "mmap", "mmap+mlock", "mlock"])
@pytest.mark.live
def test_locked_bytes_are_the_kernels(load_mode: str, repack: bool, forged: Path) -> None:
    expected = ask(gguf.read_header(forged), load_mode=load_mode, repack=repack, n_ctx=256)
    made = run(forged, load_mode=load_mode, repack=repack)
    assert abs(vm_lck(made) - expected.locked_bytes) <= (4 * PAGE if load_mode == "mlock" else 0)
    assert made.caution == ""
    pinned = made.predicted.rss_anon_bytes - (expected.locked_bytes if load_mode == "mlock" else 0)
    assert expected.unlocked_anon_bytes == pinned


@pytest.mark.parametrize("load_mode", ["none", "auto", "mmap", "mmap+mlock", "mlock", "dio"])
def test_the_boundary_is_all_that_cannot_be_taken_back(load_mode: str, forged: Path) -> None:
    header = gguf.read_header(forged)
    of = ask(header, load_mode=load_mode, repack=True)
    need = predict.memory(
        header, Settings(load_mode=load_mode), cpu_features=engine.cpu_features(), page_bytes=HERE.page_bytes
    )
    assert of.boundary_bytes == of.locked_bytes + of.unlocked_anon_bytes
    assert of.full_boundary_bytes - of.boundary_bytes == need.anon_floor_bytes - need.rss_anon_bytes > 0
    assert (of.locked_bytes > 0) == ("mlock" in load_mode)
    assert of.boundary_bytes >= need.rss_anon_bytes


def test_a_lock_moves_the_boundary_by_what_it_locks(forged: Path) -> None:
    header = gguf.read_header(forged)
    locked, mapped, heap = (ask(header, load_mode=mode) for mode in ("mmap+mlock", "mmap", "mlock"))
    assert locked.boundary_bytes - mapped.boundary_bytes == locked.locked_bytes
    assert abs(locked.boundary_bytes - heap.boundary_bytes) < 2 * PAGE  # on the heap or mapped, it is the same weights


def test_the_cache_moves_the_boundary_by_its_size(forged: Path) -> None:
    header = gguf.read_header(forged)
    short, long = ask(header, n_ctx=256), ask(header, n_ctx=8192)
    growth = long.boundary_bytes - short.boundary_bytes
    kv = predict.kv_bytes(header, Settings(n_ctx=8192)) - predict.kv_bytes(header, Settings(n_ctx=256))
    assert kv <= growth < 1.02 * kv  # and the mask
    assert long.locked_bytes == short.locked_bytes


# Whether it is allowed


def a_machine(**changes: object) -> Machine:
    plain = {"system": "Linux", "ipc_lock": False, "memlock_unlimited": False, "memlock_bytes": 8 * MiB}
    return replace(HERE, **{**plain, "reasons": {}, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("here", "allowed", "by"),
    [
        (a_machine(ipc_lock=True), True, "CAP_IPC_LOCK"),
        (a_machine(memlock_unlimited=True, memlock_bytes=None), True, "RLIMIT_MEMLOCK is unlimited"),
        (a_machine(), False, "RLIMIT_MEMLOCK 8.00 MiB"),
        (a_machine(memlock_bytes=1024 * MiB), True, "RLIMIT_MEMLOCK 1.00 GiB"),
        (a_machine(memlock_bytes=None, reasons={"memlock_bytes": "no line"}), None, "no line"),
        (
            a_machine(system="macOS", memlock_unlimited=True),
            None,
            "vm.user_wire_limit decides, which labkit does not read",
        ),
        (a_machine(system="Windows", memlock_bytes=None, ipc_lock=None), None, "RLIMIT_MEMLOCK is not known"),
    ],
)
def test_who_decides(here: Machine, allowed: bool | None, by: str, forged: Path) -> None:
    found = ask(gguf.read_header(forged), here)
    assert (found.allowed, found.allowed_by) == (allowed, by)
    assert found.remedy == predict.raise_limit(here.system)


def test_without_a_lock_nothing_is_asked(forged: Path) -> None:
    found = ask(gguf.read_header(forged), a_machine(memlock_bytes=0), load_mode="mmap")
    assert (found.locked_bytes, found.needed_limit_bytes, found.allowed) == (0, 0, True)


def test_a_childs_limit_is_asked_about_instead(forged: Path) -> None:
    found = ask(gguf.read_header(forged), a_machine(ipc_lock=True), memlock_bytes=8 * MiB)
    assert (found.allowed, found.allowed_by) == (False, "RLIMIT_MEMLOCK 8.00 MiB")


@pytest.mark.parametrize(
    ("system", "word"),
    [("Linux", "LimitMEMLOCK="), ("WSL", ".wslconfig"), ("macOS", "vm.user_wire_limit"), ("Windows", "working set")],
)
def test_each_system_has_a_remedy(system: str, word: str) -> None:
    assert word in predict.raise_limit(system)
    with pytest.raises(ValueError, match="choose one of Linux, WSL, macOS, Windows"):
        predict.raise_limit("Plan 9")


# The limit, lowered in the child


@LINUX
@pytest.mark.live
def test_a_lock_that_fails_is_a_caution_and_no_more(forged: Path) -> None:
    before = machine()
    made = run(forged, memlock="1MiB")
    assert vm_lck(made) == 0 and made.memlock_bytes == MiB
    assert made.caution.startswith("llama.cpp could not lock what it was asked to and went on: 0 B of ")
    assert Run.from_json(made.to_json()) == made
    assert (machine().memlock_bytes, machine().ipc_lock) == (before.memlock_bytes, before.ipc_lock)  # the child's alone


@LINUX
@pytest.mark.live
def test_the_needed_limit_is_needed_and_enough(tiny: Path) -> None:
    """Exactly: one page less and the last tensors stay unlocked."""
    found = ask(gguf.read_header(tiny), n_ctx=256)
    assert found.needed_limit_bytes >= found.locked_bytes
    if memlock.problem(found.needed_limit_bytes):
        pytest.skip("this user's hard limit is below 3 MiB")
    enough = run(tiny, memlock=found.needed_limit_bytes)
    assert (vm_lck(enough), enough.caution) == (found.locked_bytes, "")
    short = run(tiny, memlock=found.needed_limit_bytes - PAGE)
    assert 0 < vm_lck(short) < found.locked_bytes and "could not lock" in short.caution


@LINUX
@pytest.mark.live
def test_the_heap_is_refused_as_a_whole(tiny: Path) -> None:
    made = run(tiny, load_mode="mlock", memlock="1MiB")
    assert vm_lck(made) == 0 and "could not lock" in made.caution


@pytest.mark.live
def test_a_limit_that_cannot_be_had_is_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memlock, "problem", lambda limit: f"no {limit}.")
    made = run(tiny, memlock=64 * KiB)
    assert (made.outcome, made.reason) == ("refused", "no 65536.")


@LINUX
def test_only_a_privileged_user_may_raise_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda which: (MiB, 8 * MiB))
    monkeypatch.setattr(memlock, "_may_raise", lambda: False)
    assert memlock.problem(8 * MiB) is None
    assert memlock.problem(9 * MiB) == (
        "memlock is 9.00 MiB and this user's hard limit 8.00 MiB: it can only be lowered."
    )
    monkeypatch.setattr(memlock, "_may_raise", lambda: True)
    assert memlock.problem(9 * MiB) is None


def test_windows_has_no_such_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert memlock.problem(MiB) == "Windows has no RLIMIT_MEMLOCK: leave memlock out."
    with pytest.raises(OSError, match="no RLIMIT_MEMLOCK"):
        memlock.lower(MiB)
