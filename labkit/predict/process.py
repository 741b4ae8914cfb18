"""Predict the memory of a process that runs a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from labkit.gguf import Header, Tensor
from labkit.predict.compute import compute_bytes, feed_forward_bytes, output_bytes
from labkit.predict.hparams import EMBEDDING
from labkit.predict.kv import cache
from labkit.predict.repack import repacked
from labkit.settings import Settings
from labkit.units import MiB

# A CPython 3.11 child on x86-64 Linux after loading llama.cpp's bindings: 20 MiB anonymous, and after a token 14 MiB of
# library pages; a model's own bookkeeping adds about 2 MiB, and 250 bytes for each token of a vocabulary.
PYTHON_ANON_BYTES = 22 * MiB
PYTHON_FILE_BYTES = 14 * MiB
VOCABULARY_BYTES_PER_TOKEN = 250


@dataclass(frozen=True)
class Predicted:
    """Bytes that a run is predicted to need, by kind; ``memory`` says how each is computed.

    Where layers are on the loopback device, all but ``weights_bytes`` are those of the host's process alone.

    Attributes:
        rss_anon_bytes, rss_file_bytes: resident memory after the given tokens.
        anon_floor_bytes: all anonymous memory once the whole compute buffer has been used. The kernel cannot take it
            back without swap, so a smaller cap kills the process.
        compute_exact: whether ``compute_bytes`` is known to equal llama.cpp's figure, by formula or by a dry run.
        recurrent_bytes: the state of recurrent layers, which is not part of the KV cache.
        decode_ms: least time per token; None until a bandwidth is given.
    """

    weights_bytes: int
    mapped_bytes: int
    heap_bytes: int
    repack_bytes: int
    kv_bytes: int
    compute_bytes: int
    compute_exact: bool
    output_bytes: int
    python_bytes: int
    anon_floor_bytes: int
    rss_anon_bytes: int
    rss_file_bytes: int
    locked_bytes: int
    decode_ms: float | None = None
    recurrent_bytes: int = 0


def memory(
    header: Header,
    settings: Settings,
    *,
    cpu_features: Iterable[str] | None,
    prompt_tokens: int = 8,
    cap_bytes: int | None = None,
    page_bytes: int = 4096,
    planned_compute_bytes: int | None = None,
) -> Predicted:
    """Memory of a process that runs this model on the CPU.

    Args:
        header: the model's.
        settings: how it is run.
        cpu_features: what this build of ggml uses (``engine.cpu_features()``); None counts as none, so no repacking.
        prompt_tokens: largest batch that will be decoded, which decides how much of the compute buffer is used.
        cap_bytes: a memory cap, under which fewer pages of the file stay resident; library pages do not count, since
            they are charged to the process that read them first.
        page_bytes: the system's page size.
        planned_compute_bytes: the compute buffer as llama.cpp plans it, where no formula is exact (``dry_runs``).

    Returns:
        Bytes. ``weights``: Σ tensors. ``repack``: Σ tensors that the CPU backend copies. ``mapped``: the span of the
        file that stays mapped (mmap modes). ``heap``: tensors read into anonymous memory (the other modes). ``locked``:
        what mlock would lock.
    """
    copied = (
        frozenset(t.name for t in repacked(header, cpu_features=cpu_features or ())) if settings.repack else frozenset()
    )
    repack = sum(t.nbytes for t in header.tensors if t.name in copied)
    in_place = [t for t in header.tensors if t.name not in copied or t.name == EMBEDDING]
    is_mapped = settings.load_mode in ("auto", "mmap", "mmap+mlock")
    mapped = mapped_span(in_place, page_bytes) if is_mapped else 0
    heap = 0 if is_mapped else sum(t.nbytes for t in in_place)
    kept = cache(header, settings)
    compute, exact = compute_bytes(header, settings)
    if not exact and planned_compute_bytes is not None:
        compute, exact = planned_compute_bytes, True
    output = output_bytes(header, settings)
    tokens = header.metadata.get("tokenizer.ggml.tokens", ())
    python = PYTHON_ANON_BYTES + VOCABULARY_BYTES_PER_TOKEN * len(tokens)
    anon = heap + repack + kept.bytes + output + python
    rss_anon = anon + min(compute, feed_forward_bytes(header, settings, prompt_tokens))
    resident = mapped if cap_bytes is None else max(0, min(mapped, cap_bytes - rss_anon))
    return Predicted(
        weights_bytes=header.tensor_bytes,
        mapped_bytes=mapped,
        heap_bytes=heap,
        repack_bytes=repack,
        kv_bytes=kept.kv_bytes,
        recurrent_bytes=kept.recurrent_bytes,
        compute_bytes=compute,
        compute_exact=exact,
        output_bytes=output,
        python_bytes=python,
        anon_floor_bytes=anon + compute,
        rss_anon_bytes=rss_anon,
        rss_file_bytes=resident + PYTHON_FILE_BYTES,
        locked_bytes={"mmap+mlock": mapped, "mlock": heap}.get(settings.load_mode, 0),
    )


def mapped_span(tensors: list[Tensor], page_bytes: int) -> int:
    """Bytes that stay mapped: per file, from the page of the first tensor used in place to the page of the last.

    llama.cpp maps the whole file and then unmaps its head and tail (llama_mmap::unmap_fragment, called at the end of
    llama_model_loader::load_all_data); what lies between stays mapped, whether it is used in place or was copied.
    """
    total = 0
    for part in {t.part for t in tensors}:
        inside = [t for t in tensors if t.part == part]
        first = min(t.offset for t in inside)
        last = max(t.offset + t.nbytes for t in inside)
        total += -(-last // page_bytes) * page_bytes - first // page_bytes * page_bytes
    return total
