"""The command line: JSON that keeps its contract, exit statuses, and errors of one sentence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.computers import set_computer
from support.small import small

from labkit import cli, engine
from labkit.experiments import device, dry_run
from labkit.experiments.measure import Interrupted, measure
from labkit.experiments.recordings import load
from labkit.experiments.run import Run
from labkit.gguf import read_header
from labkit.models import shapes
from labkit.models.forge import forge, header_bytes
from labkit.settings import Settings
from labkit.system import caps
from labkit.system.machine import machine
from labkit.units import MiB, fmt_bytes

COMMANDS = ["doctor", "start", "run", "inspect", "forge", "measure", "plan", "claims"]
CAPPED = pytest.mark.skipif(caps.available().how is None, reason=caps.available().reason)

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def labkit(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command in this process: its status, and what it wrote to stdout and stderr."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))

    def run(*argv: str) -> tuple[int, str, str]:
        try:
            status = cli.main(argv)
        except SystemExit as stop:  # argparse's own
            status = int(stop.code or 0)
        return (status, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> str:
    narrow = {"embedding_length": 512, "attention_head_count_kv": 2, "feed_forward_length": 1024, "vocab_size": 512}
    shape = small(attention_head_count=8, **narrow)
    return str(forge(shape, "Q4_0", path=tmp_path_factory.mktemp("cli") / "tiny.gguf").path)


def data(answer: tuple[int, str, str], *, status: int = 0) -> Any:
    assert answer[0] == status, answer
    assert answer[2] == ""
    return json.loads(answer[1])


def said(answer: tuple[int, str, str], *, status: int = 2) -> str:
    """The one line on stderr of a command that could not."""
    assert answer[0] == status and answer[1] == "", answer
    (line,) = answer[2].splitlines()
    assert line.startswith("labkit: ")
    return line.removeprefix("labkit: ")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, labkit: Command) -> None:
    status, out, err = labkit(command, "--help")
    assert status == 0 and err == ""
    assert out.startswith(f"usage: labkit {command} ") and "--debug" in out
    arguments = re.findall(r"^  (\S+)( .*)?$", out, flags=re.M)
    assert all(text for name, text in arguments if len(name) < 20), "an argument is not explained"
    assert ("--json" in out) == (command != "start")


def test_the_list_of_commands(labkit: Command) -> None:
    status, out, _ = labkit("--help")
    assert status == 0 and "MODEL is a .gguf file, smollm2 (bundled), or SHAPE:QUANT" in out
    for command in COMMANDS:
        assert f"\n    {command} " in out, command


@pytest.mark.parametrize(
    "argv", [[], ["nonsense"], ["measure"], ["inspect"], ["forge", "--wrong"], ["measure", "x", "y"]]
)
def test_wrong_usage_is_status_2(argv: list[str], labkit: Command) -> None:
    status, out, err = labkit(*argv)
    assert status == 2 and out == "" and "usage: labkit" in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["inspect", "{readme}"], "README.md: at byte 0, the file begins with "),
        (["inspect", "missing.gguf"], "missing.gguf: there is no such file."),
        (["inspect", "{folder}"], "directory; name the .gguf file inside it."),
        (["inspect", "{forged}", "--ctx", "0"], "n_ctx is 0: it must be between 1 and"),
        (["inspect", "{forged}", "--kv", "q9"], "type_k is 'q9': choose one of f32, f16,"),
        (["inspect", "nothing"], "there is no model 'nothing': give a path"),
        (["inspect", "llama-2-13b:Q4_K_M", "--ctx", "10000000"], "n_ctx is 10,000,000: this model was trained for"),
        (["inspect", "llama-2-13b:Q4_K_M", "--ctx", "-1"], "n_ctx is -1: it must be between 1 and"),
        (["inspect", "deepseek-v2-lite:Q4_K_M", "--ctx", "512", "--kv", "q8_0/f16"], "type_k is q8_0 and type_v f16"),
        (["plan"], "name a model, as in llama-2-13b:Q4_K_M."),
        (["plan", "smollm2", "--vram", "10"], "--vram 10 would be 10 bytes: write a unit, as in 10GiB."),
        (["plan", "smollm2", "--ram", "much"], "'much' is not a size: write a number and a unit"),
        (["plan", "smollm2", "--vram", "100MiB"], "a margin of 1.00 GiB leaves nothing of 100 MiB"),
        (["plan", "smollm2", "--gpu", "nothing"], "there is no device 'nothing'"),
        (["measure", "smollm2", "--ctx", "10000000"], "n_ctx is 10,000,000: this model was trained for 8,192"),
        (["forge", "llama-2-8b", "Q4_K_M"], "there is no shape 'llama-2-8b': did you mean"),
        (["forge", "llama-2-7b", "Q4_K_XL"], "there is no mixture 'Q4_K_XL': choose one of"),
        (["forge", "llama-2-7b"], "name a mixture too: one of F16,"),
        (["forge", "llama-2-7b", "Q4_K_M", "--out", "{readme}"], "exists and was not forged"),
        (["measure", "llama-2-8b:Q4_K_M"], "there is no shape 'llama-2-8b'"),
        (["measure", "{forged}", "--load", "map"], "load_mode is 'map': choose one of auto,"),
        (["measure", "{forged}", "--cap", "600MB"], "'600MB' is ambiguous: write MiB"),
        (["measure", "{forged}", "--cap", "1KiB"], "too small"),
        (["measure", "{forged}", "--kv", "f16/q4_0", "--flash-attn", "off"], "type_v=q4_0 needs flash attention"),
        (["measure", "{forged}", "--ubatch", "4096"], "n_ubatch is 4,096 and n_batch 2,048"),
        (["measure", "{forged}", "--threads", "0"], "n_threads is 0: it must be between 1 and 512."),
        (["measure", "{forged}", "--tokens", "1000"], "8 + 1000 tokens do not fit in n_ctx=512"),
        (["run", "99"], "there is no lab '99'"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(
    argv: list[str], message: str, labkit: Command, forged: str, tmp_path: Path
) -> None:
    if message == "too small" and caps.available().how is None:
        pytest.skip("without caps it is refused as a whole")
    readme = tmp_path / "README.md"
    readme.write_text("# LLM Memory Labs\n")
    names = {"{readme}": str(readme), "{folder}": str(tmp_path), "{forged}": forged}
    assert message in said(labkit(*(names.get(word, word) for word in argv)))
    assert readme.read_text() == "# LLM Memory Labs\n"


def test_debug_shows_where_an_error_came_from(labkit: Command) -> None:
    with pytest.raises(ValueError, match="no such file"):
        labkit("inspect", "missing.gguf", "--debug")


def test_ctrl_c_between_measurements_is_told(labkit: Command, forged: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("labkit.experiments.measure.measure", stop)
    assert labkit("measure", forged) == (130, "", "labkit: stopped.\n")


# inspect


def test_inspect_prints_the_contract(labkit: Command, smollm2_path: Path) -> None:
    header = read_header(smollm2_path)
    values = data(labkit("inspect", "smollm2", "--json"))
    assert (values["arch"], values["n_layer"]) == ("llama", 30)
    assert values["n_params"] == header.n_params and values["tensor_bytes"] == header.tensor_bytes
    assert values["bpw"] == pytest.approx(header.bpw)
    assert values["types"] == {name: {"tensors": n, "bytes": size} for name, (n, size) in header.types.items()}
    assert sum(row["bytes"] for row in values["types"].values()) == values["tensor_bytes"]
    assert values["metadata"]["llama.block_count"] == 30
    assert values["metadata"]["tokenizer.ggml.tokens"] == {"array": 49152, "of": "str"}
    assert set(values["metadata"]) == set(header.metadata)
    assert "kv_bytes" not in values
    assert values == data(labkit("inspect", str(smollm2_path), "--json"))


def test_inspect_predicts_for_a_context(labkit: Command) -> None:
    values = data(labkit("inspect", "llama-3.1-8b:Q4_K_M", "--ctx", "8192", "--kv", "q8_0", "--json"))
    assert (values["n_ctx"], values["kv_bytes"]) == (8192, 8192 * 68 * 1024)
    [plan] = dry_run.dry_runs("llama-3.1-8b:Q4_K_M", [Settings(n_ctx=8192, type_k="q8_0", type_v="q8_0")])
    assert (values["compute_bytes"], values["compute_from"]) == (plan.compute_bytes, "dry run")
    assert values["compute_exact"] and values["kv_exact"] and values["recurrent_bytes"] == 0
    mixed = data(labkit("inspect", "llama-3.1-8b:Q4_K_M", "--ctx", "8192", "--kv", "q8_0/q4_0", "--json"))
    assert mixed["kv_bytes"] == 8192 * (68 + 36) // 2 * 1024
    plain = data(labkit("inspect", "llama-3.1-8b:Q4_K_M", "--ctx", "8192", "--json"))
    assert (plain["kv_bytes"], plain["compute_from"]) == (8192 * 128 * 1024, "formula")


def test_inspect_gives_the_known_figure_of_13b(labkit: Command) -> None:
    values = data(labkit("inspect", "llama-2-13b:Q4_K_M", "--ctx", "8192", "--kv", "q8_0", "--json"))
    assert values["kv_bytes"] == 3_565_158_400


def test_inspect_counts_sequences_and_states(labkit: Command) -> None:
    one = data(labkit("inspect", "granite-4.0-h-tiny:Q4_K_M", "--ctx", "4096", "--json"))
    four = data(labkit("inspect", "granite-4.0-h-tiny:Q4_K_M", "--ctx", "4096", "--parallel", "4", "--json"))
    assert four["kv_bytes"] == one["kv_bytes"] and four["recurrent_bytes"] == 4 * one["recurrent_bytes"] > 0
    shown = labkit("inspect", "granite-4.0-h-tiny:Q4_K_M", "--ctx", "4096")[1]
    assert f"recurrent state {fmt_bytes(one['recurrent_bytes'])}, whatever the context" in shown
    window = data(labkit("inspect", "gemma-3-4b:Q4_K_M", "--ctx", "8192", "--json"))
    whole = data(labkit("inspect", "gemma-3-4b:Q4_K_M", "--ctx", "8192", "--swa-full", "--json"))
    assert window["kv_bytes"] < whole["kv_bytes"]


def test_without_llama_cpp_the_compute_buffer_is_an_estimate(labkit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "version_problem", lambda: "llama-cpp-python is not installed.")
    values = data(labkit("inspect", "phi-3-mini:Q4_0", "--ctx", "512", "--json"))
    assert (values["compute_from"], values["compute_exact"]) == ("estimate", False)
    assert "compute buffer about" in labkit("inspect", "phi-3-mini:Q4_0", "--ctx", "512")[1]


def test_inspect_as_text(labkit: Command) -> None:
    status, out, err = labkit("inspect", "llama-3.1-8b:Q4_K_M", "--ctx", "8192")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "llama, 32 layers, 8.03 billion weights, 4.89 bits each"
    assert lines[1].startswith("file 4.58 GiB, of it 4.58 GiB tensors")
    n, size = read_header(header_bytes("llama-3.1-8b", "Q4_K_M")).types["Q4_K"]
    assert lines[2].split() == ["Q4_K", str(n), "tensors", *fmt_bytes(size).split()]
    assert lines[-2:] == ["KV cache 1.00 GiB for 8192 tokens", "compute buffer 267 MiB (formula)"]


# plan


def test_plan_prints_the_contract(labkit: Command) -> None:
    values = data(labkit("plan", "llama-2-13b:Q4_K_M", "--ram", "16GiB", "--vram", "10GiB", "--ctx", "4096", "--json"))
    for name in [
        "verdict",
        "assumptions",
        "host",
        "device",
        "n_gpu_layers",
        "decode_ms",
        "margin_bytes",
        "advice",
        "flags",
    ]:
        assert name in values
    assert values["verdict"] == "fits" and 0 < values["n_gpu_layers"] < 41
    assert values["device"]["total_bytes"] <= 9 * 2**30 < values["device"]["total_bytes"] + 400 * 2**20
    assert f"-ngl {values['n_gpu_layers']}" in values["flags"]["llama.cpp"]
    assert values["assumptions"]["ram_bytes"] == 16 * 2**30


def test_plan_says_no_with_status_1(labkit: Command) -> None:
    status, out, err = labkit("plan", "llama-2-13b:Q5_K_M", "--ram", "14GiB", "--ctx", "8192")
    assert (status, err) == (1, "") and out.startswith("pages: 15.0 GiB of RAM are needed with the mapped file")
    assert "type_k=q8_0, type_v=q8_0: saves" in out
    assert labkit("plan", "llama-2-70b:Q4_K_M", "--ram", "1GiB", "--load", "none")[1].startswith("killed:")


@pytest.mark.live
def test_plan_for_this_machine_uses_what_is_available(labkit: Command) -> None:
    values = data(labkit("plan", "smollm2", "--json"))
    assert values["verdict"] == "fits" and values["device"] is None and values["decode_ms"] > 0
    assert 0 < values["assumptions"]["ram_bytes"] <= (machine().ram_bytes or 0)


@pytest.mark.skipif(bool(device.problem()), reason=str(device.problem()))
@pytest.mark.live
def test_plan_lets_the_device_decide(labkit: Command) -> None:
    command = ["plan", "llama-3.2-1b:Q4_K_M", "--vram", "600MiB", "--margin", "0", "--ctx", "512", "--verify"]
    seen = data(labkit(*command, "--json"))["verified"]
    assert seen["right"] and seen["fits"]["outcome"] == "ok" and "has no room" in seen["one_more"]["reason"]
    assert said(labkit("plan", "smollm2", "--verify")) == "there is no device to verify: give --vram or --gpu."


def test_plan_lists_devices_and_knows_their_memory(labkit: Command) -> None:
    known = data(labkit("plan", "--gpu", "list", "--json"))
    assert len(known) >= 20 and "rtx-3060-12gb" in known
    values = data(labkit("plan", "llama-2-13b:Q4_K_M", "--gpu", "rtx-3060-12gb", "--ram", "16GiB", "--json"))
    assert values["n_gpu_layers"] == 41 and values["assumptions"]["vram_bytes"] == 12 * 2**30


# forge


def test_forge_lists_shapes_and_mixtures(labkit: Command) -> None:
    values = data(labkit("forge", "--json"))
    assert list(values["shapes"]) == shapes.names() and values["quants"] == list(shapes.QUANTS)
    status, out, _ = labkit("forge")
    assert status == 0 and all(name in out for name in [*shapes.names(), *shapes.QUANTS])


def test_forge_writes_a_model(labkit: Command, tmp_path: Path) -> None:
    values = data(labkit("forge", "llama-2-7b", "q4_k_m", "--json"))
    path = tmp_path / "home" / "forged" / "llama-2-7b-Q4_K_M.gguf"
    assert values["path"] == str(path) and path.stat().st_size == values["file_bytes"]
    assert values["tensor_bytes"] == 4_080_263_168 and values["disk_bytes"] < MiB
    assert (values["filled"], values["reused"]) == (False, False)
    assert data(labkit("forge", "llama-2-7b", "Q4_K_M", "--json"))["reused"] is True
    out = tmp_path / "here.gguf"
    status, text, err = labkit("forge", "smollm2-135m", "Q8_0", "--out", str(out), "--fill")
    assert (status, err) == (0, "") and out.stat().st_size > 100 * MiB
    assert text.startswith(f"{out}: ") and "no knowledge" in text


# measure

MEASURE = {
    "model": "name path arch file_bytes forged",
    "settings": "load_mode repack n_ctx type_k type_v flash_attn n_gpu_layers devices n_threads cap_bytes",
    "predicted": "weights_bytes repack_bytes kv_bytes compute_bytes output_bytes anon_floor_bytes rss_anon_bytes "
    "rss_file_bytes decode_ms",
    "measured": "rss_anon_bytes rss_file_bytes peak_rss_bytes locked_bytes minor_faults major_faults read_bytes "
    "decode_ms",
    "timings": "load_s context_s prefill_s decode_ms",
    "machine": "ram_bytes available_bytes limit_bytes cores",
}


@pytest.mark.live
def test_measure_prints_the_contract(labkit: Command) -> None:
    values = data(labkit("measure", "smollm2", "--tokens", "3", "--threads", "1", "--json"))
    for field, inner in MEASURE.items():
        assert set(inner.split()) <= set(values[field]), field
    assert {"schema", "outcome", "reason", "buffers", "samples", "recorded"} <= set(values)
    assert (values["outcome"], values["reason"], values["recorded"]) == ("ok", "", None)
    assert len(values["timings"]["decode_ms"]) == 3
    assert all(set(buffer) == {"device", "kind", "bytes"} for buffer in values["buffers"])
    assert json.loads(Run.from_dict(values).to_json()) == values


def test_measure_passes_every_option_on(labkit: Command, forged: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def fake(model: str, **options: Any) -> None:
        asked.update(model=model, **options)
        raise ValueError("enough")

    monkeypatch.setattr("labkit.experiments.measure.measure", fake)
    options = "--load none --no-repack --ctx 1024 --ubatch 64 --kv q8_0/q4_0 --flash-attn on --ngl 3 --threads 1"
    more = "--device A --device B --vram 3GiB --cap 2GiB --tokens 5 --hold 0.5 --timeout 9 --prompt hello"
    assert said(labkit("measure", forged, *options.split(), *more.split())) == "enough"
    assert asked.pop("on_text") is not None and asked.pop("bandwidth_bytes_per_s") > 0
    assert asked == {
        "model": forged,
        "load_mode": "none",
        "repack": False,
        "n_ctx": 1024,
        "n_ubatch": 64,
        "type_k": "q8_0",
        "type_v": "q4_0",
        "flash_attn": "on",
        "n_gpu_layers": 3,
        "n_threads": 1,
        "devices": ("A", "B"),
        "cap": "2GiB",
        "device_memory": "3GiB",
        "tokens": 5,
        "hold_s": 0.5,
        "timeout_s": 9.0,
        "prompt": "hello",
    }
    asked.clear()
    labkit("measure", forged, "--json")
    standard = {
        "model": forged,
        "cap": None,
        "device_memory": None,
        "tokens": 8,
        "prompt": None,
        "hold_s": 0.0,
        "timeout_s": 300.0,
        "on_text": None,
    }
    assert asked.pop("bandwidth_bytes_per_s") > 0
    assert asked == standard


@pytest.mark.live
def test_measure_as_text(labkit: Command, forged: str) -> None:
    status, out, err = labkit("measure", forged, "--tokens", "2", "--threads", "1", "--load", "mmap+mlock")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "tiny.gguf: ok" and lines[1].split() == ["predicted", "measured"]
    assert [line.split("  ")[0] for line in lines[2:6]] == [
        "anonymous memory",
        "file-backed memory",
        "locked",
        "time per token",
    ]
    assert any(line.split()[:2] == ["CPU", "kv"] for line in lines)


@pytest.mark.live
def test_measure_streams_an_answer(labkit: Command) -> None:
    status, out, _ = labkit(
        "measure", "smollm2", "--prompt", "What is the capital of France?", "--tokens", "8", "--threads", "1"
    )
    assert status == 0 and "Paris" in out.split("\nsmollm2: ok")[0]


@CAPPED
@pytest.mark.live
def test_measure_under_a_cap_is_status_1_when_killed(labkit: Command, forged: str) -> None:
    killed = data(labkit("measure", forged, "--ctx", "1048576", "--cap", "72MiB", "--json"), status=1)
    assert killed["outcome"] == "oom-killed" and killed["settings"]["cap_bytes"] == 72 * MiB
    status, out, err = labkit("measure", forged, "--ctx", "1048576", "--cap", "72MiB")
    assert (status, err) == (1, "") and out.startswith("tiny.gguf: oom-killed, the kernel killed it in context")
    spared = data(labkit("measure", forged, "--tokens", "1", "--threads", "1", "--cap", "1GiB", "--json"))
    assert spared["outcome"] == "ok" and spared["settings"]["cap_how"] == caps.available().how


@pytest.mark.live
def test_measure_that_is_refused_is_status_1(labkit: Command, forged: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_NO_CAPS", "1")
    refused = data(labkit("measure", forged, "--cap", "1GiB", "--json"), status=1)
    assert (refused["outcome"], refused["measured"]) == ("refused", None)
    status, out, err = labkit("measure", forged, "--cap", "1GiB")
    assert (status, err) == (1, "") and out.splitlines()[0].startswith("tiny.gguf: refused, no memory cap is possible")
    assert out.splitlines()[1].startswith("predicted: ")


@pytest.mark.live
def test_measure_keeps_a_record(labkit: Command, forged: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    values = data(labkit("measure", forged, "--tokens", "1", "--threads", "1", "--json", "--record", str(path)))
    (kept,) = load(path)
    assert kept.recorded is not None and {"machine", "date", "command"} <= set(kept.recorded)
    assert kept.recorded["command"].startswith("labkit measure ")
    assert kept.outcome == values["outcome"] and kept.model.path == ""


@pytest.mark.live
def test_measure_stopped_by_ctrl_c_still_answers(labkit: Command, forged: str, monkeypatch: pytest.MonkeyPatch) -> None:
    partial = measure(forged, tokens=1)

    def stop(*args: object, **options: object) -> None:
        raise Interrupted(partial)

    monkeypatch.setattr("labkit.experiments.measure.measure", stop)
    assert data(labkit("measure", forged, "--json"), status=130) == json.loads(partial.to_json())


# doctor


@pytest.mark.live
def test_doctor_prints_the_contract(labkit: Command) -> None:
    status, out, err = labkit("doctor", "--json")
    values = json.loads(out)
    assert err == "" and status == (0 if all(check["ok"] for check in values["labs"].values()) else 1)
    assert {"machine", "engine", "model", "caps", "labs"} <= set(values)
    assert values["engine"]["version"] == engine.PINNED
    assert {"how", "live"} <= set(values["caps"])


def test_doctor_is_status_1_when_a_lab_cannot_run(labkit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = "llama-cpp-python 0.3.2 is installed."
    set_computer(monkeypatch, info=engine.EngineInfo("0.3.2", False, (), (), problem))
    status, out, err = labkit("doctor")
    assert (status, err) == (1, "") and f"lab 00    NO: {problem}" in out


# As installed


def test_the_installed_command(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("labkit.exe" if os.name == "nt" else "labkit")
    (tmp_path / "README.md").write_text("# no model\n")
    for start in ([str(program)], [sys.executable, "-m", "labkit.cli"]):
        done = subprocess.run(
            [*start, "inspect", "README.md"], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 2 and done.stdout == ""
        assert done.stderr.startswith("labkit: README.md: at byte 0,") and done.stderr.count("\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="pipes break differently elsewhere")
def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = [sys.executable, "-m", "labkit.cli", "inspect", "smollm2", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.wait(timeout=300) == 0 and process.stderr.read() == b""
