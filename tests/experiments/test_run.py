"""Records of measurements: JSON and back, questions to one, and what is not one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support.full_run import MEASURED, REFUSED, RUN

from labkit.experiments.run import OUTCOMES, SCHEMA, Run
from labkit.settings import Settings
from labkit.units import MiB


@pytest.mark.parametrize("run", [RUN, REFUSED, replace(RUN, measured=None, cap_bytes=None, cap_how=None, evict=None)])
@pytest.mark.parametrize("indent", [None, 2])
def test_json_and_back(run: Run, indent: int | None) -> None:
    again = Run.from_json(run.to_json(indent=indent))
    assert again == run
    assert again.settings.devices == run.settings.devices and again.timings.decode_ms == run.timings.decode_ms


def test_the_contract() -> None:
    values = json.loads(RUN.to_json())
    assert next(iter(values)) == "schema" and values["schema"] == SCHEMA == 1
    assert set(values["model"]) == {"name", "path", "arch", "file_bytes", "forged"}
    assert values["settings"] == {
        **RUN.settings.to_dict(),
        "cap_bytes": 600 * MiB,
        "cap_how": "cgroup-v1",
        "evict": "random",
        "memlock_bytes": None,
    }
    wanted = ["weights", "repack", "kv", "compute", "output", "anon_floor", "rss_anon", "rss_file"]
    assert {f"{name}_bytes" for name in wanted} | {"decode_ms"} <= set(values["predicted"])
    wanted = ["rss_anon_bytes", "rss_file_bytes", "peak_rss_bytes", "locked_bytes", "minor_faults", "major_faults"]
    assert {*wanted, "read_bytes", "decode_ms"} <= set(values["measured"])
    assert values["measured"]["rss_file_bytes"] is None
    assert values["buffers"][0] == {"device": "CPU_Mapped", "kind": "model", "bytes": 96 * MiB}
    assert values["timings"] == {"load_s": 0.2, "context_s": 0.1, "prefill_s": None, "decode_ms": [6.25, 6.75]}
    assert len(values["samples"]) == 250 and values["recorded"] is None
    assert RUN.outcome in OUTCOMES and REFUSED.outcome in OUTCOMES


def test_questions_to_a_run() -> None:
    assert RUN.ok and not REFUSED.ok
    start = RUN.phase("start")
    assert start is not None and start.end_s == 0.1 and RUN.phase("hold") is None
    assert RUN.buffer_bytes(kind="kv") == 12 * MiB
    assert RUN.buffer_bytes(kind="kv", device="GPU") == MiB
    assert RUN.buffer_bytes(kind="output") == 0


def test_in_a_notebook_a_run_is_one_line() -> None:
    seen = replace(RUN, measured=replace(MEASURED, rss_file_bytes=114 * MiB))
    assert repr(seen) == ("Run(smollm2, none, cap 600 MiB: ok, 54.0 MiB anonymous + 114 MiB file, 6.50 ms/token)")
    killed = replace(seen, outcome="oom-killed", reason="the cap is too small.", settings=Settings(repack=False))
    assert repr(replace(killed, measured=replace(MEASURED, rss_file_bytes=0, decode_ms=None))) == (
        "Run(smollm2, mmap, repack off, cap 600 MiB: oom-killed, 54.0 MiB anonymous + 0 B file, the cap is too small.)"
    )
    assert repr(REFUSED) == "Run(smollm2, mmap: refused, there is no room.)"


def wrong(change: dict[str, Any]) -> str:
    return json.dumps({**json.loads(RUN.to_json()), **change})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (wrong({"schema": 2}), "this run has schema 2 and labkit reads 1: record it again."),
        (wrong({"schema": None}), "this run has schema None and labkit reads 1"),
        ("{}", "this is not a run that labkit measured: it has no schema."),
        ("[]", "this is not a run that labkit measured"),
        ('"x"', "this is not a run that labkit measured"),
        ('{"schema": 1}', "this run is damaged"),
        (wrong({"model": {"name": "x"}}), "this run is damaged"),
        (wrong({"settings": {}}), "this run is damaged"),
        (wrong({"measured": []}), "this run is damaged"),
        (wrong({"samples": [{"t_s": 0}]}), "this run is damaged"),
        (wrong({"settings": {**json.loads(RUN.to_json())["settings"], "n_ctx": 0}}), "n_ctx is 0"),
        ("not json", "Expecting value"),
    ],
)
def test_what_is_no_run_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        Run.from_json(text)
    assert str(error.value).startswith(message)
