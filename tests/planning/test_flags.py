"""Flags against the programs that read them: the options in llama.cpp's library, the arguments of Llama()."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import shlex
from dataclasses import fields, replace
from pathlib import Path

import pytest

from labkit.planning.flags import flags
from labkit.settings import CACHE_TYPES, Settings

MISSING = "  # there is no option for: "

PLAIN = Settings(n_ctx=4096, n_gpu_layers=20)
ODD = Settings(
    load_mode="mlock",
    repack=False,
    n_ctx=4096,
    n_batch=256,
    n_ubatch=128,
    n_seq_max=4,
    kv_unified=True,
    swa_full=True,
    type_k="q8_0",
    type_v="q4_0",
    flash_attn="on",
    offload_kqv=False,
    n_gpu_layers=99,
    n_threads=6,
)


def everything() -> dict[str, str]:
    return flags("a b.gguf", ODD, n_layer=32, n_cpu_moe=10, on_cpu=(r"blk\.3\.ffn_up",), shares=(3, 1))


def options(text: str) -> list[str]:
    return [word for word in shlex.split(text) if re.fullmatch(r"--?[a-z][a-z-]*", word)]


def test_a_plain_run() -> None:
    found = flags("model.gguf", PLAIN, n_layer=32)
    assert found["llama.cpp"] == "llama-server -m model.gguf -ngl 20 -c 4096 -np 1"
    assert found["llama-cpp-python"] == (
        "Llama(model_path='model.gguf', n_gpu_layers=20, n_ctx=4096, n_batch=2048, flash_attn=True, swa_full=False)"
    )
    assert found["lmstudio"] == (
        "Context Length: 4096; GPU Offload: 20; Flash Attention: on; Keep Model in Memory: off; "
        "Max Concurrent Predictions: 1"
    )
    assert found["ollama"].splitlines() == [
        "FROM model.gguf",
        "PARAMETER num_gpu 20",
        "PARAMETER num_ctx 4096",
        "OLLAMA_FLASH_ATTENTION=1 ollama serve",
    ]


def test_all_of_it_is_the_blocks_and_one() -> None:
    for asked in (-1, 33, 99):
        found = flags("m.gguf", Settings(n_gpu_layers=asked), n_layer=32)
        assert "-ngl 33 " in found["llama.cpp"] and "n_gpu_layers=33" in found["llama-cpp-python"]
        assert "num_gpu 33" in found["ollama"] and "GPU Offload: max" in found["lmstudio"]
    assert "GPU Offload: 32" in flags("m.gguf", Settings(n_gpu_layers=32), n_layer=32)["lmstudio"]


def test_every_llama_cpp_option_exists() -> None:
    """The option parser's strings are in libllama-common, which the package brings along."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llama-cpp-python is not installed")
    site = Path(spec.submodule_search_locations[0]).parent
    libraries = [path for folder in ("lib", "llama_cpp/lib") for path in (site / folder).glob("libllama-common.so")]
    if not libraries:
        pytest.skip("this build comes without libllama-common, which lists the options")
    data = libraries[0].read_bytes()
    used = options(everything()["llama.cpp"])
    assert {"-ngl", "-c", "-np", "-ub", "-ctk", "-ctv", "-fa", "-lm", "--no-repack", "-nkvo"} <= set(used)
    assert {"-ncmoe", "-ot", "-ts", "-kvu", "--swa-full", "-t"} <= set(used)
    # A string may be kept as the end of a longer one, so only its own end is looked for.
    assert [option for option in used if option.encode() + b"\0" not in data] == []
    assert b"--no-such-option\0" not in data


def test_every_argument_of_llama_cpp_python_exists() -> None:
    Llama = pytest.importorskip("llama_cpp").Llama
    known = set(inspect.signature(Llama.__init__).parameters)
    for text in (everything()["llama-cpp-python"], flags("m", PLAIN, n_layer=2)["llama-cpp-python"]):
        call = ast.parse(text.split("  #")[0], mode="eval").body
        assert isinstance(call, ast.Call) and {word.arg for word in call.keywords} <= known


def test_cache_types_are_ggmls_numbers() -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    for name, number in CACHE_TYPES.items():
        assert getattr(llama_cpp, f"GGML_TYPE_{name.upper()}", number) == number
    assert "type_k=8, type_v=2" in everything()["llama-cpp-python"]


def test_a_default_of_llama_is_not_repeated_and_its_own_are_overruled() -> None:
    llama = pytest.importorskip("llama_cpp").Llama
    default = {name: p.default for name, p in inspect.signature(llama.__init__).parameters.items()}
    assert default["flash_attn"] is False and default["offload_kqv"] is True
    assert default["swa_full"] is None, "llama_context_default_params decides"
    assert pytest.importorskip("llama_cpp").llama_context_default_params().swa_full
    assert default["n_batch"] == default["n_ubatch"] == 512 and default["n_gpu_layers"] == 0
    found = flags("m", Settings(n_batch=512, flash_attn="off", swa_full=True, n_gpu_layers=1), n_layer=2)
    assert found["llama-cpp-python"] == "Llama(model_path='m', n_gpu_layers=1, n_ctx=512)"


def test_what_a_program_cannot_be_told_is_said() -> None:
    found = everything()
    for name in ("llama-cpp-python", "lmstudio", "ollama"):
        told, _, untold = found[name].partition(MISSING)
        assert "--no-repack" in untold and r"blk\.3\.ffn_up=CPU" in untold and "-ts 3,1" in untold
        assert "repack" not in told
    assert "-ctk q8_0 -ctv q4_0" in found["ollama"], "one type for both"
    same = flags("m", Settings(type_k="q8_0", type_v="q8_0"), n_layer=2)["ollama"]
    assert "OLLAMA_KV_CACHE_TYPE=q8_0" in same and "#" not in same
    assert "Number of layers for which to force MoE layers into CPU: 10" in found["lmstudio"]
    assert "-ncmoe" not in found["lmstudio"]
    assert "#" not in found["llama.cpp"]


CHANGES: list[tuple[str, object]] = [
    *((f.name, getattr(ODD, f.name)) for f in fields(Settings) if getattr(ODD, f.name) != f.default),
    ("flash_attn", "off"),
    ("n_batch", 1024),
    ("load_mode", "none"),
    ("load_mode", "mmap+mlock"),
    ("load_mode", "dio"),
]


@pytest.mark.parametrize(("name", "value"), CHANGES, ids=str)
def test_no_setting_is_dropped_in_silence(name: str, value: object) -> None:
    """Each setting alone changes what every program is told, or follows the sign in llama.cpp's words."""
    base = Settings(n_gpu_layers=20, n_ubatch=200)  # no larger than any batch here
    plain = flags("m", base, n_layer=32)
    found = flags("m", replace(base, **{name: value}), n_layer=32)  # type: ignore[arg-type]
    for program, text in found.items():
        untold = text.partition(MISSING)[2]
        if (name, value) == ("flash_attn", "on") and program != "llama.cpp":
            assert text == plain[program], "it cannot be left to these programs: they are always told"
            continue
        assert text != plain[program]
        assert set(untold.split()) <= set(found["llama.cpp"].split())


def test_names_of_these_programs() -> None:
    told = {name: text.partition(MISSING)[0] for name, text in everything().items()}
    for line in ("Max Concurrent Predictions: 4", "Evaluation Batch Size: 256", "CPU Threads: 6"):
        assert line in told["lmstudio"]
    off = flags("m", replace(PLAIN, flash_attn="off"), n_layer=2)
    assert "Flash Attention: off" in off["lmstudio"] and "OLLAMA_FLASH_ATTENTION=0" in off["ollama"]
    assert "-fa off" in off["llama.cpp"] and not any("#" in text for text in off.values())
    untold = {name: text.partition(MISSING)[2].split() for name, text in everything().items()}
    assert {"-np", "-kvu"} <= set(untold["llama-cpp-python"]) and "--swa-full" not in untold["llama-cpp-python"]
    assert {"-ub", "-kvu", "--swa-full"} <= set(untold["lmstudio"]) and "-b" not in untold["lmstudio"]
    assert {"-b", "-kvu", "--swa-full", "-nkvo", "-lm"} <= set(untold["ollama"]) and "-ub" not in untold["ollama"]
