"""Plans of many settings against one dry run each; what is refused or kills the child costs only itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.small import small

from labkit import engine, gguf
from labkit.engine.log import LOG_RESOLUTION_BYTES
from labkit.experiments import dry_run
from labkit.experiments.child import task
from labkit.experiments.dry_run import N_CTX_MAX, Planned, dry_runs
from labkit.models.forge import forge
from labkit.models.lookup import ModelError
from labkit.settings import Settings
from labkit.units import MiB

# Without flash attention llama.cpp counts where V goes, batch × 4096 places, in 32 bits: 2^32 becomes 0, and it aborts
# (llama_kv_cache::build_input_v_idxs).
ABORTS = Settings(n_ctx=1 << 20, n_batch=1 << 20, n_ubatch=1 << 20, flash_attn="off")

pytestmark = pytest.mark.live


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "_remembered", {})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return forge(small("llama-2-7b"), "Q4_K_M", path=tmp_path_factory.mktemp("models") / "small.gguf").path


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[Settings]]]:
    """The settings that each child was asked for."""
    asked: list[list[Settings]] = []
    original = task.run

    def counted(function: str, job: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        asked.append([Settings.of(one) for one in job["settings"]])
        return original(function, job, **kwargs)

    monkeypatch.setattr(task, "run", counted)
    yield asked


SIZES = ("kv_bytes", "recurrent_bytes", "compute_bytes", "output_bytes")


def sizes(plan: Planned) -> tuple[Any, ...]:
    return plan.kv_bytes, plan.recurrent_bytes, plan.compute_bytes, plan.output_bytes, plan.caches


def test_plans_equal_single_dry_runs(model: Path, smollm2_path: Path, children: list[list[Settings]]) -> None:
    wanted = [
        Settings(),
        Settings(n_ctx=8192, type_k="q8_0", type_v="q4_0", n_seq_max=4),
        Settings(n_ctx=8192, flash_attn="off", n_ubatch=64, kv_unified=True, n_seq_max=2),
        Settings(repack=False, n_outputs_max=1),
        Settings(n_ctx=131072),
    ]
    for path in (model, smollm2_path):
        for plan, settings in zip(dry_runs(path, wanted), wanted, strict=True):
            with engine.Model(path, settings, dry=True) as opened, engine.Context(opened, settings) as context:
                one = dry_run.sizes(context)
            assert sizes(plan) == (*(one[name] for name in SIZES), context.kv)
            assert (plan.settings, plan.problem) == (settings, None)
    assert len(children) == 2  # one for each model, though repack differs


def test_a_plan_says_what_llama_cpp_then_allocates(smollm2_path: Path) -> None:
    wanted = [Settings(), Settings(n_ctx=2048, type_k="q8_0", type_v="q4_0", n_ubatch=64)]
    for plan, settings in zip(dry_runs(smollm2_path, wanted), wanted, strict=True):
        with engine.Model(smollm2_path, settings) as opened, engine.Context(opened, settings) as context:
            real = dry_run.sizes(context)
            allocated = sum(buffer.bytes for buffer in context.buffers if buffer.kind == "kv")
            assert sizes(plan) == (*(real[name] for name in SIZES), context.kv)
        assert plan.kv_bytes == pytest.approx(allocated, abs=2 * LOG_RESOLUTION_BYTES)


def test_planning_allocates_nothing(tmp_path: Path) -> None:
    path = forge("llama-2-13b", "Q4_K_M", path=tmp_path / "13b.gguf").path
    before = Path("/proc/self/statm").read_text().split() if Path("/proc/self/statm").exists() else None
    for cache_type, mib in (("f16", 6400), ("q8_0", 3400), ("q4_0", 1800)):
        settings = Settings(n_ctx=8192, type_k=cache_type, type_v=cache_type)
        with engine.Model(path, settings, dry=True) as opened, engine.Context(opened, settings) as context:
            assert context.n_ctx == 8192
            assert sum(cache.bytes for cache in context.kv) == mib * MiB
    if before:
        grown = int(Path("/proc/self/statm").read_text().split()[1]) - int(before[1])
        assert grown * os.sysconf("SC_PAGE_SIZE") < 64 * MiB


def test_a_sliding_window_has_two_caches(tmp_path: Path) -> None:
    path = forge(small("gemma-3-4b", block_count=6), "Q4_0", path=tmp_path / "window.gguf").path
    (plan,) = dry_runs(path, [Settings(n_ctx=8192)])
    assert [(cache.cells, cache.n_layers) for cache in plan.caches] == [(8192, 1), (1536, 5)]
    assert plan.kv_bytes == sum(cache.bytes for cache in plan.caches)


def test_a_shape_is_planned_without_being_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    (plan,) = dry_runs("llama-2-13b:Q4_K_M", [Settings(n_ctx=8192, type_k="q8_0", type_v="q8_0")])
    assert plan.kv_bytes == 3_565_158_400  # 40 layers × 8192 cells × 2 × 5120 elements at 34 bytes for 32


def test_a_context_of_a_million_is_planned_and_of_a_billion_refused(
    model: Path, children: list[list[Settings]]
) -> None:
    million, billion = dry_runs(model, [Settings(n_ctx=1 << 20), Settings(n_ctx=1 << 30)])
    assert million.kv_bytes == 2 * 8192 * 2 * MiB  # 2 layers × 8192 elements × 2 bytes for each of 2^20 cells
    assert billion.problem and f"{N_CTX_MAX:,}" in billion.problem and billion.kv_bytes is None
    assert len(children) == 1


def test_what_llama_cpp_refuses_is_the_problem_of_that_setting_only(tmp_path: Path) -> None:
    narrow = small(attention_key_length=80, attention_value_length=80, rope_dimension_count=80)
    path = forge(narrow, "F16", path=tmp_path / "narrow.gguf").path
    wanted = [Settings(), Settings(type_k="q8_0"), Settings(n_ctx=1024)]
    first, refused, last = dry_runs(path, wanted)
    assert first.problem is None is last.problem and last.kv_bytes == 2 * (first.kv_bytes or 0)
    assert refused.problem and "block size 32 does not divide n_embd_head_k=80" in refused.problem
    assert sizes(refused) == (None, None, None, None, ()) and refused.settings == wanted[1]


def test_a_setting_that_kills_the_child_costs_only_itself(model: Path, children: list[list[Settings]]) -> None:
    wanted = [Settings(), ABORTS, Settings(n_ctx=1024), Settings(n_ctx=2048)]
    first, dead, *others = dry_runs(model, wanted)
    assert dead.problem and "GGML_ASSERT" in dead.problem and dead.kv_bytes is None
    assert [plan.problem for plan in (first, *others)] == [None] * 3
    assert [plan.kv_bytes for plan in others] == [2 * (first.kv_bytes or 0), 4 * (first.kv_bytes or 0)]
    assert [len(asked) for asked in children] == [4, 2]  # the second child goes on behind the one at hand


def double(answers: Callable[[int, dict[str, Any]], Iterator[dict[str, Any]]]) -> Callable[..., dict[str, Any]]:
    """A ``task.run`` whose child says ``answers(call, job)``, and dies after the last of them unless that is done."""
    calls = iter(range(99))

    def run(function: str, job: dict[str, Any], *, what: str, on_step: Any, cancel: Any) -> dict[str, Any]:
        for event in answers(next(calls), job):
            if event["event"] == "done":
                return {}
            on_step(event)
        raise task.TaskError(f"{what} was killed")

    return run


def test_a_killed_child_is_replaced_and_its_setting_asked_again_next_time(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(call: int, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for index, one in enumerate(job["settings"]):
            yield {"event": "trying", "index": index}
            if call == 0 and one["n_ctx"] == 512:
                return
            yield {"event": "planned", "index": index, "plan": {"kv_bytes": one["n_ctx"], "problem": None}}
        yield {"event": "done"}

    monkeypatch.setattr(task, "run", double(answers))
    wanted = [Settings(n_ctx=n) for n in (256, 512, 1024)]
    plans = dry_runs(model, wanted)
    assert [(plan.kv_bytes, plan.problem) for plan in plans] == [
        (256, None),
        (None, "planning small.gguf was killed"),
        (1024, None),
    ]
    assert [plan.kv_bytes for plan in dry_runs(model, wanted)] == [256, 512, 1024]


def test_a_model_that_does_not_open_is_an_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(task.TaskError, match="there is no device RPC9 to offload to"):
        dry_runs(model, [Settings(devices=("RPC9",))])
    cut = model.with_name("cut.gguf")
    head = gguf.read_header(model)
    cut.write_bytes(model.read_bytes()[: head.data_offset])
    with pytest.raises(gguf.GGUFError, match="cut off or damaged"):
        dry_runs(cut, [Settings()])
    with pytest.raises(ModelError, match="there is no model"):
        dry_runs("nonsense", [Settings()])
    monkeypatch.setattr(task, "run", double(lambda call, job: iter(())))
    with pytest.raises(task.TaskError, match=r"planning small\.gguf was killed"):  # and no child after it
        dry_runs(model, [Settings()])


def test_plans_are_remembered_while_the_file_stays_the_same(model: Path, children: list[list[Settings]]) -> None:
    wanted = [Settings(n_ctx=n) for n in (512, 1024)]
    first = dry_runs(model, wanted)
    threaded = [replace(one, n_threads=2, load_mode="none") for one in wanted]
    again = dry_runs(model, threaded)
    assert [sizes(plan) for plan in again] == [sizes(plan) for plan in first]
    assert [plan.settings for plan in again] == threaded
    assert len(children) == 1
    dry_runs(model, [*wanted, Settings(n_ctx=2048), Settings(n_ctx=2048)])
    assert [one.n_ctx for one in children[1]] == [2048]
    os.utime(model, ns=(1, 1))
    dry_runs(model, wanted)
    assert len(children) == 3


def test_what_is_remembered_is_bounded(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "REMEMBERED", 3)
    plans = dry_runs(model, [Settings(n_ctx=256 * n) for n in range(1, 6)])
    assert len(dry_run._remembered) == 3
    assert None not in [plan.kv_bytes for plan in plans]


def test_progress_and_cancel(model: Path) -> None:
    seen: list[float] = []
    dry_runs(model, [Settings(n_ctx=256 * n) for n in range(1, 6)], progress=lambda share, text: seen.append(share))
    assert seen == [0.2, 0.4, 0.6, 0.8, 1.0]
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(task.Cancelled, match=r"planning small\.gguf was cancelled"):
        dry_runs(model, [Settings(n_ctx=4096)], cancel=cancel)
    assert dry_runs(model, []) == ()
