"""What a model will need, before it runs: bytes of each kind, and milliseconds per token. Needs no llama.cpp."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from labkit.gguf import GGUFError, Header, Tensor, row_bytes
from labkit.settings import Settings
from labkit.units import MiB

# A CPython 3.11 child on x86-64 Linux after importing llama_cpp: 24–29 MiB anonymous, 21 MiB of library pages; a
# model's own bookkeeping adds about 2 MiB, and 250 bytes for each token of a vocabulary.
PYTHON_ANON_BYTES = 31 * MiB
PYTHON_FILE_BYTES = 22 * MiB
VOCABULARY_BYTES_PER_TOKEN = 250

CELL_PADDING = 256  # llama_context pads n_ctx to it (src/llama-context.cpp)
EMBEDDING = "token_embd.weight"


@dataclass(frozen=True)
class Predicted:
    """Bytes a run is expected to need, by kind; ``memory`` says how each is computed.

    ``rss_anon_bytes`` and ``rss_file_bytes`` are the resident set after the given tokens. ``anon_floor_bytes`` is all
    that the kernel cannot take back once the whole compute buffer has been used: it decides whether a cap kills.
    ``compute_exact`` says whether the compute buffer's formula is known to equal llama.cpp's for this architecture.
    ``decode_ms`` is None until a bandwidth is given.
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


def memory(
    header: Header,
    settings: Settings,
    *,
    cpu_features: Iterable[str] | None,
    prompt_tokens: int = 8,
    cap_bytes: int | None = None,
    page_bytes: int = 4096,
) -> Predicted:
    """Memory of a process that runs this model on the CPU.

    Args:
        header: the model's.
        settings: how it is run.
        cpu_features: what this build of ggml uses (``engine.cpu_features()``); None counts as none, so no repacking.
        prompt_tokens: largest batch that will be decoded, which decides how much of the compute buffer is touched.
        cap_bytes: a memory cap, which leaves less room for pages of the file; library pages are charged to whoever read
            them first and do not count.
        page_bytes: the system's page size.

    Returns:
        Bytes. ``weights``: Σ tensors. ``repack``: Σ tensors the CPU backend copies. ``mapped``: the span of the file
        that stays mapped (mmap modes). ``heap``: tensors read into anonymous memory (the other modes). ``locked``: what
        mlock would pin.
    """
    copied = (
        frozenset(t.name for t in repacked(header, cpu_features=cpu_features or ())) if settings.repack else frozenset()
    )
    repack = sum(t.nbytes for t in header.tensors if t.name in copied)
    in_place = [t for t in header.tensors if t.name not in copied or t.name == EMBEDDING]
    is_mapped = settings.load_mode in ("auto", "mmap", "mmap+mlock")
    mapped = _mapped_span(in_place, page_bytes) if is_mapped else 0
    heap = 0 if is_mapped else sum(t.nbytes for t in in_place)
    kv = kv_bytes(header, settings)
    compute, exact = compute_bytes(header, settings)
    output = 4 * n_vocab(header) * settings.n_seq_max
    tokens = header.metadata.get("tokenizer.ggml.tokens", ())
    python = PYTHON_ANON_BYTES + VOCABULARY_BYTES_PER_TOKEN * len(tokens)
    anon = heap + repack + kv + output + python
    rss_anon = anon + min(compute, _feed_forward_bytes(header, settings, prompt_tokens))
    resident = mapped if cap_bytes is None else max(0, min(mapped, cap_bytes - rss_anon))
    return Predicted(
        weights_bytes=header.tensor_bytes,
        mapped_bytes=mapped,
        heap_bytes=heap,
        repack_bytes=repack,
        kv_bytes=kv,
        compute_bytes=compute,
        compute_exact=exact,
        output_bytes=output,
        python_bytes=python,
        anon_floor_bytes=anon + compute,
        rss_anon_bytes=rss_anon,
        rss_file_bytes=resident + PYTHON_FILE_BYTES,
        locked_bytes={"mmap+mlock": mapped, "mlock": heap}.get(settings.load_mode, 0),
    )


def n_vocab(header: Header) -> int:
    """Rows of the token embedding, which is the length of the logits.

    Raises:
        GGUFError: there is none, so this file is not a language model.
    """
    try:
        return header.tensor(EMBEDDING).dims[1]
    except KeyError:
        raise GGUFError(f"{header.path}: there is no {EMBEDDING} in it, so this is not a language model.") from None


def kv_bytes(header: Header, settings: Settings) -> int:
    """Bytes of the KV cache, allocated and zeroed when the context is created.

    Σ over layers of streams × cells × (row(type_k, head_k × n_head_kv) + row(type_v, head_v × n_head_kv)). A
    sliding-window layer keeps only its window plus one batch, unless ``swa_full``. Source: llama_kv_cache (src/
    llama-kv-cache.cpp), llama_kv_cache_iswa (src/llama-kv-cache-iswa.cpp), llama_context for the padding.
    """
    streams, cells = _streams_and_cells(settings)
    n_swa = _window(header)
    windowed = cells
    if n_swa and not settings.swa_full:
        ubatch = min(settings.n_ubatch, settings.n_batch, _padded(settings.n_ctx))
        windowed = min(cells, _padded(min(cells, n_swa * (settings.n_seq_max if settings.kv_unified else 1) + ubatch)))
    total = 0
    for layer in range(header.n_layer):
        k, v = _kv_widths(header, layer)
        rows = windowed if n_swa and _is_windowed(header, layer) else cells
        total += streams * rows * (row_bytes(settings.type_k.upper(), k) + row_bytes(settings.type_v.upper(), v))
    return total


def compute_bytes(header: Header, settings: Settings) -> tuple[int, bool]:
    """Bytes of the compute buffer on the CPU, and whether the formula is exact here.

    The widest moment of one batch of ub tokens, in f32: the logits, the feed-forward, or without flash attention the
    attention scores. With flash attention

        4 · max(outputs · (n_vocab + n_embd + 1) + ub · n_embd,  ub · (3 · n_ff + 4 · n_embd + n_ctx / 2 + 6) + outputs)

    where n_ctx / 2 is the f16 attention mask and 6 the batch's ids, positions and cache indices. Found by comparing
    with llama.cpp's dry run; equal to it for llama, qwen2 and qwen3 with flash attention on and an f16 or bf16 cache.
    Elsewhere an estimate: where the feed-forward is narrow or only some logits are wanted, ggml's allocator may leave
    holes; a quantized cache adds its rotation; an f32 one is copied to f16, layer by layer.
    """
    ub = min(settings.n_ubatch, settings.n_batch, settings.n_ctx)
    outputs = min(ub, settings.n_outputs_max or ub)
    n_embd = int(header.key("embedding_length", 0))
    logits = 4 * (outputs * (n_vocab(header) + n_embd + 1) + ub * n_embd)
    feed_forward = _feed_forward_bytes(header, settings, ub) + 4 * outputs
    streams, cells = _streams_and_cells(settings)
    k, v = _kv_widths(header, 0)
    if settings.flash_attn != "off":
        solid = outputs in (1, ub) and (feed_forward > logits or _n_ff(header) >= 3 * n_embd)
        exact = (
            header.arch in ("llama", "qwen2", "qwen3")
            and settings.n_seq_max == 1
            and {settings.type_k, settings.type_v} <= {"f16", "bf16"}
        )
        copied = (k if settings.type_k == "f32" else 0) + (v if settings.type_v == "f32" else 0)
        copies = 2 * streams * cells * copied + ub * (20 * n_embd + 2 * cells)
        return max(logits, feed_forward, copies if copied else 0), exact and solid
    scores = 4 * ub * (cells * (_per_layer(header, "attention.head_count", 0) + 1) + 5 * n_embd + k + v + 6)
    return max(
        logits, scores, _feed_forward_bytes(header, settings, ub) + 4 * ub * (cells // 2 + k + v - n_embd)
    ), False


def _feed_forward_bytes(header: Header, settings: Settings, batch: int) -> int:
    """What a batch touches of the compute buffer with one output row: gate, up and their product are its widest."""
    ub = min(batch, settings.n_ubatch)
    n_embd = int(header.key("embedding_length", 0))
    return 4 * ub * (3 * _n_ff(header) + 4 * n_embd + 6) + 2 * ub * _streams_and_cells(settings)[1]


def _n_ff(header: Header) -> int:
    """Width of a token's feed-forward: of a mixture of experts, that of all the experts it is routed to."""
    n_ff = _per_layer(header, "feed_forward_length", 0)
    if used := int(header.key("expert_used_count", 0)):
        n_ff = used * int(header.key("expert_feed_forward_length", n_ff))
    return n_ff


def repacked(header: Header, *, cpu_features: Iterable[str]) -> tuple[Tensor, ...]:
    """Tensors that the CPU backend copies into its own layout (buffer ``CPU_REPACK``) when ``repack`` is on.

    Matrix weights only: 2-D ones (MUL_MAT) and stacked experts (MUL_MAT_ID). The token embedding's rows are looked up,
    so it stays; where it also serves as the output layer, that one is a copy of it. Source:
    ggml_repack_get_optimal_repack_type and extra_buffer_type::supports_op in ggml/src/ggml-cpu/repack.cpp,
    TENSOR_DUPLICATED in llama_model_loader::create_tensor.
    """
    cpu = frozenset(cpu_features)
    tied = not _has_output(header)
    return tuple(
        t
        for t in header.tensors
        if (tied if t.name == EMBEDDING else _is_matmul(t))
        and (rows := _repack_rows(t.type, cpu))
        and t.dims[1] % rows == 0
    )


def _has_output(header: Header) -> bool:
    return any(t.name == "output.weight" for t in header.tensors)


def _is_matmul(tensor: Tensor) -> bool:
    if any(part in tensor.name for part in _LOOKED_UP):
        return False
    return len(tensor.dims) == 2 or (len(tensor.dims) == 3 and "_exps." in tensor.name)


# Tensors whose rows are picked by an index (GGML_OP_GET_ROWS in llm_tensor_infos, src/llama-arch.cpp).
_LOOKED_UP = ("token_embd", "token_types", "position_embd")


def _repack_rows(type_name: str, cpu: frozenset[str]) -> int | None:
    """How many rows are interleaved for this type on this CPU; None when it stays as it is."""
    dot, i8mm = {"neon", "dotprod"} <= cpu, {"neon", "matmul_int8"} <= cpu
    match type_name:
        case "Q4_0":
            return 8 if "avx2" in cpu else 4 if dot or i8mm or "vxe" in cpu else None
        case "Q4_K":
            return 8 if "avx2" in cpu or dot or i8mm else None
        case "IQ4_NL" | "MXFP4":
            return 8 if "avx2" in cpu else 4 if dot else None
        case "Q2_K":
            return 8 if "avx512" in cpu else None
        case "Q5_K" | "Q6_K":
            return 8 if dot or i8mm else None
        case "Q8_0" | "Q1_0":
            return 4 if dot or i8mm else None
        case _:
            return None


def bytes_per_token(header: Header, settings: Settings, *, n_past: int = 0) -> int:
    """Bytes of memory that decoding one token reads: the weights it uses and the cache up to ``n_past``.

    An untied token embedding is not read (one row of it is); of a mixture of experts, only the routed experts are.
    """
    untied = _has_output(header)
    used, total = int(header.key("expert_used_count", 0)), int(header.key("expert_count", 0))
    read = 0
    for tensor in header.tensors:
        if tensor.name == EMBEDDING and untied:
            continue
        share = used / total if total and "_exps." in tensor.name else 1.0
        read += int(tensor.nbytes * share)
    streams, cells = _streams_and_cells(settings)
    return read + kv_bytes(header, settings) * n_past // (streams * cells)


def decode_ms(bytes_read: int, *, bandwidth_bytes_per_s: float, overhead_ms: float = 0.0) -> float:
    """The roofline: a token takes at least the time to read its bytes once, plus what does not depend on bytes."""
    return bytes_read / bandwidth_bytes_per_s * 1000 + overhead_ms


def paging_ms(bytes_read: int, *, warm_ms: float, needed_bytes: int, cap_bytes: int, disk_bytes_per_s: float) -> float:
    """Time per token under a memory cap, for weights that are read in the same order every token.

    While everything fits, nothing is read from disk. Once the cap is smaller than what is needed, least-recently-used
    reclaim drops each page just before it is wanted again, so that nearly every byte comes from the disk each time.
    """
    return warm_ms if cap_bytes >= needed_bytes else warm_ms + bytes_read / disk_bytes_per_s * 1000


def _padded(n: int) -> int:
    return -(-n // CELL_PADDING) * CELL_PADDING


def _streams_and_cells(settings: Settings) -> tuple[int, int]:
    """How many separate caches there are, and the cells of each."""
    n_ctx = _padded(settings.n_ctx)
    if settings.kv_unified:
        return 1, n_ctx
    return settings.n_seq_max, _padded(n_ctx // settings.n_seq_max)


def _per_layer(header: Header, name: str, layer: int) -> int:
    value = header.key(name, 0)
    return int(value) if isinstance(value, (int, float)) else int(value[layer])


def _kv_widths(header: Header, layer: int) -> tuple[int, int]:
    """Elements of one cell's K and V row in a layer."""
    heads = _per_layer(header, "attention.head_count", layer)
    # Without the key, every head has its own K and V; a 0 in a list marks a layer without attention.
    kv_heads = (
        heads if header.key("attention.head_count_kv") is None else _per_layer(header, "attention.head_count_kv", layer)
    )
    head = int(header.key("embedding_length", 0)) // max(1, heads)
    return int(header.key("attention.key_length", head)) * kv_heads, int(
        header.key("attention.value_length", head)
    ) * kv_heads


def _window(header: Header) -> int:
    """Cells of the sliding window; 0 where llama.cpp ignores it (phi3: src/models/phi3.cpp)."""
    return 0 if header.arch in ("llama", "phi3") else int(header.key("attention.sliding_window", 0) or 0)


def _is_windowed(header: Header, layer: int) -> bool:
    """Whether a layer is a sliding-window one. Gemma 3: all but every sixth (llama_hparams::set_swa_pattern)."""
    pattern = header.key("attention.sliding_window_pattern", 6)
    if isinstance(pattern, int):
        return layer % pattern < pattern - 1
    return bool(pattern[layer])


def _mapped_span(tensors: list[Tensor], page_bytes: int) -> int:
    """Bytes that stay mapped: per file, from the page of the first tensor used in place to the page of the last.

    llama.cpp maps the whole file and then unmaps its head and tail (llama_mmap::unmap_fragment, called at the end of
    llama_model_loader::load_all_data); what lies between stays, whether it is used or was copied.
    """
    total = 0
    for part in {t.part for t in tensors}:
        inside = [t for t in tensors if t.part == part]
        first = min(t.offset for t in inside)
        last = max(t.offset + t.nbytes for t in inside)
        total += -(-last // page_bytes) * page_bytes - first // page_bytes * page_bytes
    return total
