"""What llama.cpp's log says of its buffers, read from real lines and from lines made by its own format strings."""

from __future__ import annotations

import pytest

from labkit.engine.log import (
    LOG_RESOLUTION_BYTES,
    Buffer,
    KVCache,
    failed_lock,
    first_reason,
    no_room,
    parse_buffers,
    parse_kv,
    parse_recurrent,
    parse_rotation,
)
from labkit.units import MiB

LOAD = """\
load_tensors: loading model tensors, this can take a while... (load_mode = mmap)
load_tensors: offloading 0 repeating layers to GPU
load_tensors: offloaded 0/3 layers to GPU
load_tensors:   CPU_Mapped model buffer size =    67.23 MiB
load_tensors:   CPU_REPACK model buffer size =    55.69 MiB
...............
""".splitlines()

# Gemma 3 4B, n_ctx 8192, dry: two caches, and buffer lines that read 0.00.
SLIDING = """\
llama_context: n_ctx_seq (8192) < n_ctx_train (131072) -- the full capacity of the model will not be utilized
llama_context:        CPU  output buffer size =     1.00 MiB
llama_kv_cache_iswa: creating non-SWA KV cache, size = 8192 cells
llama_kv_cache:        CPU KV buffer size =     0.00 MiB
llama_kv_cache: size =  160.00 MiB (  8192 cells,   5 layers,  1/1 seqs), K (f16):   80.00 MiB, V (f16):   80.00 MiB
llama_kv_cache: attn_rot_k = 0, n_embd_head_k_all = 256
llama_kv_cache_iswa: creating     SWA KV cache, size = 1536 cells
llama_kv_cache:        CPU KV buffer size =     0.00 MiB
llama_kv_cache: size =  174.00 MiB (  1536 cells,  29 layers,  1/1 seqs), K (f16):   87.00 MiB, V (f16):   87.00 MiB
sched_reserve: reserving ...
sched_reserve:        CPU compute buffer size =   522.00 MiB
""".splitlines()

# 24 layers, n_ctx 8192, f16, keys and values 128 wide.
KNOWN = [
    "llama_kv_cache: size =   96.00 MiB (  8192 cells,  24 layers,  1/1 seqs), "
    "K (f16):   48.00 MiB, V (f16):   48.00 MiB"
]

REMOTE = """\
load_tensors:   CPU_Mapped model buffer size =   163.10 MiB
load_tensors: RPC0[127.0.0.1:50052] model buffer size =   763.04 MiB
llama_kv_cache: RPC0[127.0.0.1:50052] KV buffer size =    30.00 MiB
llama_kv_cache:        CPU KV buffer size =     2.00 MiB
llama_kv_cache: size =   32.00 MiB (   512 cells,  16 layers,  4/2 seqs), K (q8_0):   17.00 MiB, V (q4_0):   9.00 MiB
sched_reserve: RPC0[127.0.0.1:50052] compute buffer size = 12345.67 MiB
""".splitlines()

RECURRENT = """\
llama_memory_recurrent:        CPU RS buffer size =     4.50 MiB
llama_memory_recurrent: size =    4.50 MiB (     1 cells,  24 layers,  1 seqs  0 rs_seq), R (f32):    0.50 MiB, \
S (f32):    4.00 MiB, P (f32):    0.00 MiB
""".splitlines()


def test_buffers_of_a_load():
    assert parse_buffers(LOAD) == (
        Buffer("CPU_Mapped", "model", round(67.23 * MiB)),
        Buffer("CPU_REPACK", "model", round(55.69 * MiB)),
    )
    assert parse_kv(LOAD) == ()


def test_a_dry_run_has_its_caches_in_the_summary_lines():
    assert parse_buffers(SLIDING) == (
        Buffer("CPU", "output", MiB),
        Buffer("CPU", "kv", 0),
        Buffer("CPU", "kv", 0),
        Buffer("CPU", "compute", 522 * MiB),
    )
    full, windowed = parse_kv(SLIDING)
    assert full == KVCache(8192, 5, "f16", "f16", 80 * MiB, 80 * MiB)
    assert windowed == KVCache(1536, 29, "f16", "f16", 87 * MiB, 87 * MiB)
    assert (full.bytes, windowed.bytes) == (160 * MiB, 174 * MiB)
    assert parse_recurrent(SLIDING) == 0


def test_the_known_cache():
    (cache,) = parse_kv(KNOWN)
    assert cache == KVCache(8192, 24, "f16", "f16", 48 * MiB, 48 * MiB)
    assert cache.k_bytes == 24 * 8192 * 128 * 2


def test_remote_devices_keep_their_whole_name():
    device = "RPC0[127.0.0.1:50052]"
    assert parse_buffers(REMOTE) == (
        Buffer("CPU_Mapped", "model", round(163.10 * MiB)),
        Buffer(device, "model", round(763.04 * MiB)),
        Buffer(device, "kv", 30 * MiB),
        Buffer("CPU", "kv", 2 * MiB),
        Buffer(device, "compute", round(12345.67 * MiB)),
    )
    assert parse_kv(REMOTE) == (KVCache(512, 16, "q8_0", "q4_0", 17 * MiB, 9 * MiB),)


def test_recurrent_state_is_no_cache():
    assert parse_recurrent(RECURRENT) == round(4.5 * MiB)
    assert parse_buffers(RECURRENT) == (Buffer("CPU", "rs", round(4.5 * MiB)),)
    assert parse_kv(RECURRENT) == ()


def test_resolution_is_half_the_last_decimal():
    for size in (1, 5_242, 5_243, 123_456_789, 96_583_680):
        (found,) = parse_buffers([f"load_tensors: CPU model buffer size = {size / MiB:8.2f} MiB"])
        assert abs(found.bytes - size) <= LOG_RESOLUTION_BYTES


def test_other_lines_give_nothing():
    noise = [
        "llama_adapter: CPU LoRA buffer size = 12.00 MiB",
        "llama_opt: CPU compute buffer size is 12.0000 MiB, matches expectation of 12.0000 MiB",
        "",
    ]
    assert parse_buffers(noise) == () and parse_kv(noise) == () and parse_recurrent(noise) == 0
    assert parse_buffers([]) == ()


def test_the_halves_of_a_cache_that_are_rotated():
    lines = ["llama_kv_cache: attn_rot_k = 0, n_embd_head_k_all = 96", "llama_kv_cache: attn_rot_v = 1, n_embd = 64"]
    assert parse_rotation(lines) == (False, True)
    assert parse_rotation(["nothing"]) == (False, False)


def test_a_lock_that_the_kernel_refused():
    said = "warning: failed to mlock 96583680-byte buffer (after previously locking 0 bytes): Cannot allocate memory"
    assert failed_lock([*LOAD, said]) and not failed_lock(LOAD)


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ([], None),
        (["", "\n", "....."], None),
        (["....llama_model_load: error loading model: read error"], "error loading model: read error"),
        (
            [
                "llama_model_load: error loading model: missing tensor 'blk.0.attn_q.weight'",
                "llama_model_load_from_file_impl: failed to load model",
            ],
            "error loading model: missing tensor 'blk.0.attn_q.weight'",
        ),
        (
            ["gguf_init_from_file: invalid magic characters", "llama_model_load_from_file_impl: failed to load model"],
            "invalid magic characters",
        ),
        (["llama_model_load_from_file_impl: failed to load model"], "failed to load model"),
        (
            ["llama_init_from_model: quantized V cache requires flash_attn to be enabled"],
            "quantized V cache requires flash_attn to be enabled",
        ),
    ],
)
def test_the_line_that_says_why(errors, said):
    assert first_reason(errors) == said


def test_a_reason_about_room_is_understood():
    assert no_room("failed to allocate RPC0[127.0.0.1:1] buffer of size 33554432") == ("RPC0[127.0.0.1:1]", 33554432)
    assert no_room("tensor 'x' not found") is None
