"""Settings: llama.cpp's names, and every refusal by name before llama.cpp can abort."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from gguf import GGMLQuantizationType

from labkit.settings import CACHE_TYPES, FLASH_ATTN, LOAD_MODES, N_CTX_MAX, Settings, SettingsError

EVERYTHING = {
    "load_mode": "mmap+mlock",
    "repack": False,
    "n_ctx": 4096,
    "n_batch": 1024,
    "n_ubatch": 256,
    "n_seq_max": 2,
    "kv_unified": True,
    "swa_full": True,
    "type_k": "q8_0",
    "type_v": "q4_0",
    "flash_attn": "on",
    "offload_kqv": False,
    "n_gpu_layers": 17,
    "devices": ("RPC0[127.0.0.1:50052]",),
    "n_threads": 1,
    "n_outputs_max": 2,
}


def test_every_setting_survives_json():
    assert set(EVERYTHING) == {field.name for field in fields(Settings)}, "a new setting: add it to this test"
    chosen = Settings.of(EVERYTHING)
    assert Settings.of(json.loads(json.dumps(chosen.to_dict()))) == chosen
    assert json.loads(json.dumps(Settings().to_dict())) == Settings().to_dict()
    assert all(getattr(chosen, name) != getattr(Settings(), name) for name in EVERYTHING)


def test_a_list_of_devices_becomes_a_tuple():
    assert Settings(devices=["RPC0", "RPC1"]).devices == ("RPC0", "RPC1")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_gpu_layer": 1}, "n_gpu_layer is not a setting: did you mean n_gpu_layers?"),
        ({"n_thread": 1}, "n_thread is not a setting: did you mean n_threads?"),
        ({"load_mod": "mmap"}, "load_mod is not a setting: did you mean load_mode?"),
        ({"cache_type_k": "f16"}, "cache_type_k is not a setting: did you mean type_k?"),
        ({"qqq": 1}, "qqq is not a setting: known: load_mode, repack, n_ctx,"),
        ({"load_mode": "map"}, "load_mode is 'map': choose one of auto, none, mmap, mlock, mmap+mlock, dio."),
        ({"load_mode": None}, "load_mode is None: choose one of auto,"),
        ({"load_mode": ["mmap"]}, "load_mode is ['mmap']: choose one of auto,"),
        ({"flash_attn": True}, "flash_attn is True: choose one of auto, off, on."),
        ({"type_k": "F16"}, "type_k is 'F16': choose one of f32, f16, bf16,"),
        ({"type_v": "q4_k"}, "type_v is 'q4_k': choose one of f32, f16, bf16,"),
        ({"repack": 1}, "repack is 1: write True or False."),
        ({"kv_unified": "yes"}, "kv_unified is 'yes': write True or False."),
        ({"swa_full": None}, "swa_full is None: write True or False."),
        ({"offload_kqv": 0}, "offload_kqv is 0: write True or False."),
        ({"n_ctx": 0}, "n_ctx is 0: it must be between 1 and 1,073,741,824."),
        ({"n_ctx": N_CTX_MAX + 1}, "n_ctx is 1,073,741,825: it must be between"),
        ({"n_ctx": "4096"}, "n_ctx is '4096': write a whole number."),
        ({"n_ctx": 4096.0}, "n_ctx is 4096.0: write a whole number."),
        ({"n_ctx": True}, "n_ctx is True: write a whole number."),
        ({"n_batch": 0}, "n_batch is 0: it must be between"),
        ({"n_ubatch": 0}, "n_ubatch is 0: it must be between"),
        ({"n_ubatch": 4096}, "n_ubatch is 4,096 and n_batch 2,048: it cannot be the larger, raise both."),
        ({"n_seq_max": 0}, "n_seq_max is 0: it must be between 1 and 256."),
        ({"n_seq_max": 257}, "n_seq_max is 257: it must be between 1 and 256."),
        ({"n_seq_max": 4, "n_ctx": 2}, "n_seq_max is 4: it must be between 1 and 2."),
        ({"n_seq_max": 4, "n_batch": 2, "n_ubatch": 2}, "n_seq_max is 4: it must be between 1 and 2."),
        ({"n_gpu_layers": -2}, "n_gpu_layers is -2: it must be between -1 and"),
        ({"n_threads": 0}, "n_threads is 0: it must be between 1 and 512."),
        ({"n_threads": 1.5}, "n_threads is 1.5: write a whole number."),
        ({"n_outputs_max": 0}, "n_outputs_max is 0: it must be between 1 and 2,048."),
        ({"n_outputs_max": 2049}, "n_outputs_max is 2,049: it must be between 1 and 2,048."),
        ({"n_outputs_max": 1, "n_seq_max": 2}, "n_outputs_max is 1: it must be between 2 and 2,048."),
        ({"devices": "RPC0"}, "devices is 'RPC0': write a list of names"),
        ({"devices": None}, "devices is None: write a list of names"),
        ({"devices": [0]}, "devices is [0]: write a list of names"),
    ],
)
def test_refusals_name_the_setting(wrong, message):
    with pytest.raises(SettingsError) as error:
        Settings.of(wrong)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value) and str(error.value).endswith((".", "?"))


@pytest.mark.parametrize("type_v", CACHE_TYPES)
def test_a_quantized_v_cache_needs_flash_attention(type_v):
    for flash_attn in ("auto", "on"):
        assert Settings(type_v=type_v, flash_attn=flash_attn).type_v == type_v
    if type_v in ("f32", "f16", "bf16"):
        assert Settings(type_v=type_v, flash_attn="off").flash_attn == "off"
    else:
        with pytest.raises(SettingsError, match=rf"^type_v={type_v} needs flash attention: .*flash_attn=auto or on"):
            Settings(type_v=type_v, flash_attn="off")


@pytest.mark.parametrize("type_k", CACHE_TYPES)
def test_a_quantized_k_cache_does_not(type_k):
    assert Settings(type_k=type_k, flash_attn="off").type_k == type_k


def test_numbers_are_llama_cpps():
    from llama_cpp import llama_cpp as ll

    assert {name: number for name, number in LOAD_MODES.items() if number > 0} == {
        "mmap": ll.LLAMA_LOAD_MODE_MMAP,
        "mlock": ll.LLAMA_LOAD_MODE_MLOCK,
        "mmap+mlock": ll.LLAMA_LOAD_MODE_MMAP_MLOCK,
        "dio": ll.LLAMA_LOAD_MODE_DIRECT_IO,
    }
    assert FLASH_ATTN == {
        "auto": ll.LLAMA_FLASH_ATTN_TYPE_AUTO,
        "off": ll.LLAMA_FLASH_ATTN_TYPE_DISABLED,
        "on": ll.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    }
    assert {name: GGMLQuantizationType[name.upper()] for name in CACHE_TYPES} == CACHE_TYPES
