"""Options that several commands share, and what they stand for in ``Settings``."""

from __future__ import annotations

import argparse
import json
from typing import Any

MODEL = "a .gguf file, smollm2 (bundled), or SHAPE:QUANT for a forged one, as in llama-2-7b:Q4_K_M"
LOAD = "how weights are loaded: auto, none, mmap, mlock, mmap+mlock or dio (default mmap)"

_SETTINGS = (
    *("load_mode", "repack", "n_ctx", "n_ubatch", "flash_attn", "n_seq_max", "kv_unified", "swa_full"),
    *("n_gpu_layers", "n_threads"),
)


def add_context(parser: argparse.ArgumentParser, ctx_help: str) -> None:
    """The options that decide the sizes of the cache and the compute buffer."""
    parser.add_argument("--ctx", dest="n_ctx", type=int, metavar="N", help=ctx_help)
    parser.add_argument(
        "--ubatch", dest="n_ubatch", type=int, metavar="N", help="tokens computed at a time, n_ubatch (default 512)"
    )
    parser.add_argument(
        "--kv", metavar="TYPE[/TYPE]", help="types of the K and V cache, as in q8_0 or q8_0/q4_0 (default f16)"
    )
    parser.add_argument(
        "--flash-attn", dest="flash_attn", metavar="MODE", help="flash attention: auto, on or off (default auto)"
    )
    parser.add_argument(
        "--parallel", dest="n_seq_max", type=int, metavar="N", help="sequences at a time, n_seq_max (default 1)"
    )
    parser.add_argument(
        "--kv-unified", dest="kv_unified", action="store_true", default=None, help="one cache for all sequences"
    )
    parser.add_argument(
        "--swa-full",
        dest="swa_full",
        action="store_true",
        default=None,
        help="keep all tokens in layers with a sliding window, too",
    )


def chosen(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of ``Settings`` that were given on the command line."""
    values = {name: getattr(args, name, None) for name in _SETTINGS}
    given = {name: value for name, value in values.items() if value is not None}
    if args.kv is not None:
        type_k, _, type_v = args.kv.partition("/")
        given |= {"type_k": type_k, "type_v": type_v or type_k}
    return given


def print_json(values: Any) -> None:
    """Print values as JSON."""
    print(json.dumps(values, indent=2))
