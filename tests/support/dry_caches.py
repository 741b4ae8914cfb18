"""Ask llama.cpp which caches it would make: ``python dry_caches.py '[SETTINGS, ...]' HEADER.gguf...``.

Needs no weights: llama.cpp makes the model up from the metadata alone (llama_model_init_from_user), so this works for
every architecture, whether or not the kit knows its tensors. Run in a process of its own, since llama.cpp may abort.
Writes a JSON object a line: a file, then each setting, then what its log says of caches, or why it refused.
"""

import ctypes
import json
import os
import re
import sys
from pathlib import Path

import llama_cpp.llama_cpp as ll

from labkit.settings import CACHE_TYPES, FLASH_ATTN, Settings

log: list[str] = []
KV = re.compile(r"llama_kv_cache: size = .*?K \(\S+\): *([\d.]+) MiB, V \(\S+\): *([\d.]+) MiB")
RS = re.compile(r"llama_memory_recurrent: size = *([\d.]+) MiB")


@ll.llama_log_callback
def on_log(level, text, user):
    line = text.decode("utf-8", "replace")
    log.append(line)
    for kind, pattern in (("kv", KV), ("rs", RS)):
        if match := pattern.search(line):
            print(json.dumps({kind: match.groups()}), flush=True)  # at once, for llama.cpp may abort later


class Init(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


def load(path: Path):
    base = ctypes.CDLL(str(next((Path(ll.__file__).parent / "lib").glob("*ggml-base.*"))))
    base.gguf_init_from_file.restype = ctypes.c_void_p
    base.gguf_init_from_file.argtypes = [ctypes.c_char_p, Init]
    metadata = base.gguf_init_from_file(str(path).encode(), Init(True, None))
    params = ll.llama_model_default_params()
    params.no_alloc, params.load_mode, params.use_extra_bufts, params.load_mtp = True, 0, False, True
    init = ll._lib.llama_model_init_from_user
    init.restype = ctypes.c_void_p
    init.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ll.llama_model_params]
    return init(metadata, None, None, params)


def plan(model, settings: Settings) -> None:
    params = ll.llama_context_default_params()
    for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "kv_unified", "swa_full", "offload_kqv"):
        setattr(params, name, getattr(settings, name))
    params.type_k, params.type_v = CACHE_TYPES[settings.type_k], CACHE_TYPES[settings.type_v]
    params.flash_attn_type = FLASH_ATTN[settings.flash_attn]
    context = ll.llama_init_from_model(model, params)
    if context:
        ll.llama_free(context)
    else:
        print(json.dumps({"refused": log[-1].strip()}), flush=True)


def answer(path: Path) -> None:
    print(json.dumps({"file": path.name}), flush=True)
    log.clear()
    model = load(path)
    if not model:
        print(json.dumps({"refused": "".join(log)[-400:]}), flush=True)
        return
    for settings in json.loads(sys.argv[1]):
        print(json.dumps({"settings": settings}), flush=True)
        plan(model, Settings.of(settings))
    ll.llama_model_free(model)


ll.llama_log_set(on_log, ctypes.c_void_p(0))
ll.llama_backend_init()
for path in map(Path, sys.argv[2:]):
    # In a child where that is quick: an abort then ends only the child, and nothing has to be imported again.
    if not hasattr(os, "fork"):
        answer(path)
    elif child := os.fork():
        os.waitpid(child, 0)
    else:
        answer(path)
        os._exit(0)
