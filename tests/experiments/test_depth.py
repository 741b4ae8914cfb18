"""Speed at depth: what is timed, in which order, and what is refused. No figure is asserted: they are the machine's."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support.small import small

from labkit import engine
from labkit.experiments.child import task
from labkit.experiments.depth import DepthSpeed, in_child, speed_at_depth
from labkit.models.forge import forge
from labkit.settings import Settings, SettingsError

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return forge(small(), "Q4_0", path=tmp_path_factory.mktemp("models") / "small.gguf").path


def test_rows_come_in_order_of_depth_and_type(model: Path) -> None:
    seen: list[float] = []
    found = speed_at_depth(
        model,
        types=("f16", ("q8_0", "q4_0"), ("f16", "f16", "off")),
        depths=(40, 0, 10, 40),
        repeats=3,
        threads=1,
        progress=lambda share, text: seen.append(share),
    )
    kinds = [("f16", "f16", "on"), ("q8_0", "q4_0", "on"), ("f16", "f16", "off")]
    assert [(row.n_past, row.type_k, row.type_v, row.flash_attn) for row in found] == [
        (depth, *kind) for depth in (0, 10, 40) for kind in kinds
    ]
    assert all(len(row.decode_ms) == 3 and min(row.decode_ms) > 0 for row in found)
    # What was timed stays: 3 of the 10, and 13 of the 40, are there already.
    assert [row.fill_tokens for row in found[::3]] == [0, 7, 27]
    assert all((row.fill_s > 0) == (row.fill_tokens > 0) for row in found)
    assert seen == sorted(seen) and 0 < seen[-1] <= 1


def test_contexts_take_turns_at_the_depth_that_is_reported(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[tuple[str, int, int]] = []
    original = engine.Context.decode

    def watched(self: engine.Context, tokens: list[int], **kwargs: bool) -> None:
        decoded.append((self.kv[0].type_k, self.n_past, len(tokens)))
        original(self, tokens, **kwargs)

    monkeypatch.setattr(engine.Context, "decode", watched)
    rows = [Settings(n_ctx=22, n_threads=1, type_k=kind, n_outputs_max=1).to_dict() for kind in ("f16", "q8_0")]
    in_child(model=str(model), settings=rows, depths=[0, 20], repeats=2, send=lambda *_, **__: None)
    once = [("f16", 0, 1), ("q8_0", 0, 1)]
    assert decoded == [
        *once,  # forgotten again
        *once,
        ("f16", 1, 1),
        ("q8_0", 1, 1),
        ("f16", 2, 18),
        ("q8_0", 2, 18),
        ("f16", 20, 1),
        ("q8_0", 20, 1),
        ("f16", 21, 1),
        ("q8_0", 21, 1),
    ]


def test_the_median_and_the_fastest_ignore_one_slow_token() -> None:
    row = DepthSpeed("f16", "f16", "on", 0, (5.0, 900.0, 6.0, 7.0), 0, 0.0)
    assert (row.median_ms, row.fastest_ms) == (6.5, 5.0)


def test_what_makes_no_sense_is_refused(model: Path) -> None:
    with pytest.raises(task.TaskError, match="depths 0 and 4 are less than 16 repeats apart"):
        speed_at_depth(model, depths=(4, 0))
    for wrong in ({"depths": ()}, {"depths": (-1,)}, {"repeats": 0}, {"types": ()}):
        with pytest.raises(task.TaskError, match="give at least one"):
            speed_at_depth(model, **wrong)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="type_k is 'q9'"):
        speed_at_depth(model, types=("q9",))
    with pytest.raises(SettingsError, match="type_v=q4_0 needs flash attention"):
        speed_at_depth(model, types=("q4_0",), flash_attn="off")
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(task.Cancelled, match=r"timing small\.gguf was cancelled"):
        speed_at_depth(model, cancel=cancel)


def test_what_llama_cpp_refuses_is_a_sentence(tmp_path: Path) -> None:
    shape = small(attention_key_length=80, attention_value_length=80, rope_dimension_count=80)
    path = forge(shape, "F16", path=tmp_path / "narrow.gguf").path
    with pytest.raises(task.TaskError, match="block size 32 does not divide n_embd_head_k=80"):
        speed_at_depth(path, types=("f16", "q8_0"), depths=(0,), repeats=1)
