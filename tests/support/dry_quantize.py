"""Ask llama.cpp which type it would give each tensor: `python dry_quantize.py F16.gguf QUANT...`.

Run in a process of its own, since llama.cpp may abort. Writes one JSON object a line: the mixture, (name, type) of all
tensors in llama.cpp's order, and how many fell back to another type. Nothing is quantized and no file is written.
"""

import ctypes
import json
import re
import sys

import llama_cpp.llama_cpp as ll

from labkit.models.mixtures import MIXTURES

log: list[str] = []
LINE = re.compile(r"\[ *\d+/ *\d+\] +(\S+) .*?type = +(\w+), size = .*?(?:\((\w+)\))?$")


@ll.llama_log_callback
def on_log(level, text, user):
    log.append(text.decode("utf-8", "replace"))


ll.llama_log_set(on_log, ctypes.c_void_p(0))
ll.llama_backend_init()


def dry_quantize(path: str, quant: str) -> dict[str, object]:
    log.clear()
    params = ll.llama_model_quantize_default_params()
    params.dry_run = True
    params.nthread = 1
    params.ftype = MIXTURES[quant].ftype
    assert ll.llama_model_quantize(path.encode(), b"never-written", ctypes.byref(params)) == 0, "".join(log)
    found = []
    n_fallbacks = 0
    for line in "".join(log).split("\n"):
        n_fallbacks += "falling back" in line
        match = LINE.search(line)
        if match:
            name, before, after = match.groups()
            found.append((name, (after or before).upper()))
    return {"quant": quant, "tensors": found, "n_fallbacks": n_fallbacks}


for quant in sys.argv[2:]:
    print(json.dumps(dry_quantize(sys.argv[1], quant)), flush=True)
