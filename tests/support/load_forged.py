"""Load models in llama.cpp and decode token ids: `python load_forged.py [--dry] MODEL.gguf...`.

Run in a process of its own, since llama.cpp may abort. Writes one JSON object a line: whether all logits are finite,
their spread, and how many of three ids are followed by scores of their own. `--dry` allocates nothing and reports the
KV cache.
"""

import json
import sys
from pathlib import Path

import numpy as np

from labkit import engine
from labkit.settings import Settings

settings = Settings(repack=False, n_ctx=512)


def decode(path: Path) -> dict[str, object]:
    with engine.Model(path, settings) as model, engine.Context(model, settings) as context:
        logits = []
        for token in (1, 2, model.n_vocab - 1):
            context.decode([token])
            logits.append(context.logits())
        return {
            "finite": bool(np.isfinite(logits).all()),
            "std": float(np.std(logits)),
            "different": len({row.tobytes() for row in logits}),
        }


def plan(path: Path) -> dict[str, object]:
    with engine.Model(path, settings, dry=True) as model, engine.Context(model, settings) as context:
        return {"kv_bytes": sum(cache.bytes for cache in context.kv)}


dry = sys.argv[1] == "--dry"
for name in sys.argv[2 if dry else 1 :]:
    path = Path(name)
    result = plan(path) if dry else decode(path)
    print(json.dumps({"file": path.name, **result}), flush=True)
