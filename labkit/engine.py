"""llama.cpp, with its own names and every knob the labs turn. The only module that imports llama_cpp.

llama.cpp may abort the process on a bad file, so anything that loads a model runs in a child (see ``experiment``);
importing this module costs nothing, llama_cpp itself is loaded on first use.
"""

from __future__ import annotations

import codecs
import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.enginelog import Buffer, KVCache, first_reason, parse_buffers, parse_kv, parse_recurrent
from labkit.ggml_types import TYPES
from labkit.ggmltensor import Reader
from labkit.settings import CACHE_TYPES, FLASH_ATTN, LOAD_MODES, Settings

PINNED = "0.3.36"
_CPU_FEATURES = ("avx2", "avx512", "neon", "dotprod", "matmul_int8", "sve", "vxe", "amx_int8")


class EngineError(RuntimeError):
    """llama.cpp said no; the message is one sentence with its reason."""


@dataclass(frozen=True)
class Device:
    """A device the build can compute on. ``kind`` is CPU, GPU, IGPU or ACCEL."""

    name: str
    description: str
    kind: str
    total_bytes: int | None


@dataclass(frozen=True)
class EngineInfo:
    """What is installed. ``problem`` is None, or one sentence that says what is wrong and what to do."""

    version: str | None
    rpc: bool
    devices: tuple[Device, ...]
    cpu_features: tuple[str, ...]
    problem: str | None


@dataclass(frozen=True)
class DryRun:
    """What llama.cpp would allocate, found without allocating it. Rounded by its log to 0.01 MiB."""

    kv: tuple[KVCache, ...]
    kv_bytes: int
    recurrent_bytes: int
    compute_bytes: int
    output_bytes: int
    n_ctx: int
    log: tuple[str, ...]


def installed_version() -> str | None:
    """Version of llama-cpp-python without importing it, or None."""
    try:
        return importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        return None


def version_problem() -> str | None:
    """One sentence if the installed llama-cpp-python is not the one this kit was checked against, else None."""
    version = installed_version()
    if version is None:
        return f"llama-cpp-python is not installed: run `pip install llama-cpp-python=={PINNED}` or use `uv run`."
    if version != PINNED:
        return (
            f"llama-cpp-python {version} is installed and this kit is checked against {PINNED}: names and figures "
            f"differ between versions, so run `pip install llama-cpp-python=={PINNED}`."
        )
    return None


@cache
def library(name: str) -> ctypes.CDLL | None:
    """One of the shared libraries that llama-cpp-python ships (``ggml-cpu``), without importing the package."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(os.environ.get("LLAMA_CPP_LIB_PATH") or Path(spec.submodule_search_locations[0]) / "lib")
    stem = {"win32": f"{name}.dll", "darwin": f"lib{name}.dylib"}.get(sys.platform, f"lib{name}.so")
    path = folder / stem
    return ctypes.CDLL(str(path)) if path.exists() else None


@cache
def cpu_features() -> frozenset[str] | None:
    """CPU features this build of ggml uses (``avx2``, ``neon``, …); they decide what is repacked. None: no engine.

    Source: ggml_cpu_has_* in ggml/include/ggml-cpu.h.
    """
    lib = library("ggml-cpu")
    if lib is None:
        return None
    return frozenset(name for name in _CPU_FEATURES if getattr(lib, f"ggml_cpu_has_{name}")())


class _Log:
    """Collects llama.cpp's log, which arrives in fragments: a line ends at a newline."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.errors: list[str] = []
        self.hear: Callable[[str], None] | None = None
        self._rest = ""

    def add(self, text: str, *, error: bool = False) -> None:
        if self.hear:
            self.hear(text)
        *whole, self._rest = (self._rest + text).split("\n")
        self.lines += whole
        if error:
            self.errors += whole

    def why(self) -> str:
        """The reason among the errors since the last ``take``."""
        return first_reason(self.errors) or "it gave no reason"

    def take(self) -> tuple[str, ...]:
        lines, self.lines, self.errors = self.lines, [], []
        return tuple(lines)


_log = _Log()
_callbacks: list[Any] = []


@cache
def _ll() -> Any:
    """The low-level bindings, with the log captured and the backend started."""
    problem = version_problem()
    if problem:
        raise EngineError(problem)
    import llama_cpp.llama_cpp as ll

    @ll.llama_log_callback  # type: ignore[untyped-decorator]
    def on_log(level: int, text: bytes, user: Any) -> None:
        if level != 1:  # 1 is debug: thousands of lines about graph inputs
            _log.add(text.decode("utf-8", "replace"), error=level == 4)

    _callbacks.append(on_log)  # llama.cpp calls it for as long as the process lives
    ll.llama_log_set(on_log, ctypes.c_void_p(0))
    ll.llama_backend_init()
    return ll


def info() -> EngineInfo:
    """What is installed and what it can compute on. Imports llama_cpp (about half a second); never raises."""
    problem = version_problem()
    if problem:
        return EngineInfo(installed_version(), False, (), (), problem)
    try:
        ll = _ll()
    except (OSError, ImportError, RuntimeError) as error:
        reason = f"llama-cpp-python {PINNED} is installed but does not load ({error}): reinstall it on this machine."
        return EngineInfo(installed_version(), False, (), (), reason)
    features = tuple(sorted(cpu_features() or ()))
    return EngineInfo(PINNED, bool(ll.llama_supports_rpc()), devices(), features, None)


def devices() -> tuple[Device, ...]:
    """Compute devices of this build, the CPU among them (ggml-backend.h, ggml_backend_dev_*)."""
    _ll()
    lib, base = library("ggml"), library("ggml-base")
    if lib is None or base is None:
        return ()
    lib.ggml_backend_dev_count.restype = ctypes.c_size_t
    lib.ggml_backend_dev_get.restype = ctypes.c_void_p
    lib.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    for function in ("name", "description", "type"):
        getattr(base, f"ggml_backend_dev_{function}").argtypes = [ctypes.c_void_p]
    base.ggml_backend_dev_name.restype = base.ggml_backend_dev_description.restype = ctypes.c_char_p
    base.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, *[ctypes.POINTER(ctypes.c_size_t)] * 2]
    found = []
    for i in range(lib.ggml_backend_dev_count()):
        dev = lib.ggml_backend_dev_get(i)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        base.ggml_backend_dev_memory(dev, ctypes.byref(free), ctypes.byref(total))
        kind = {0: "CPU", 1: "GPU", 2: "IGPU", 3: "ACCEL"}.get(base.ggml_backend_dev_type(dev), "other")
        name = base.ggml_backend_dev_name(dev).decode()
        description = base.ggml_backend_dev_description(dev).decode() or platform.processor()
        found.append(Device(name, description, kind, total.value or None))
    return tuple(found)


class Model:
    """A loaded model. Use as a context manager: freeing is explicit, Python's ``del`` may come too late."""

    def __init__(self, path: Path, settings: Settings, *, dry: bool = False) -> None:
        """Load ``path``.

        Raises:
            EngineError: llama.cpp refused the file, or a named device does not exist.
        """
        ll = _ll()
        params = ll.llama_model_default_params()
        params.load_mode = 0 if dry else LOAD_MODES[settings.load_mode]
        params.no_alloc = dry
        params.use_extra_bufts = settings.repack
        params.n_gpu_layers = settings.n_gpu_layers
        self._devices = _device_array(settings.devices)  # llama.cpp keeps the pointer while it loads
        if self._devices is not None:
            params.devices = ctypes.cast(self._devices, ctypes.c_void_p)
        _log.take()
        self._ptr = ll.llama_model_load_from_file(os.fsencode(path), params)
        why, self.log = _log.why(), _log.take()
        if not self._ptr:
            raise EngineError(f"llama.cpp cannot load {path.name}: {why}.")
        self.path = path
        self.buffers = parse_buffers(self.log)
        self._vocab = ll.llama_model_get_vocab(self._ptr)
        self.n_vocab = int(ll.llama_vocab_n_tokens(self._vocab))
        # The token every text of this model begins with, if there is one.
        self.bos = int(ll.llama_vocab_bos(self._vocab)) if ll.llama_vocab_get_add_bos(self._vocab) else None
        self.n_layer = int(ll.llama_model_n_layer(self._ptr))

    def __enter__(self) -> Model:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Free the model's memory; again is harmless."""
        if self._ptr:
            _ll().llama_model_free(self._ptr)
            self._ptr = None

    def tokenize(self, text: str) -> list[int]:
        """Text to token ids, special tokens such as ``<|im_start|>`` included.

        Raises:
            EngineError: the model has no vocabulary (a forged one).
        """
        ll = _ll()
        if ll.llama_vocab_type(self._vocab) == 0:
            raise EngineError("this model is forged and has no vocabulary: give token ids, not text.")
        raw = text.encode()
        ids = (ll.llama_token * (len(raw) + 8))()
        n = ll.llama_tokenize(self._vocab, raw, len(raw), ids, len(ids), True, True)
        if n < 0:
            raise EngineError("llama.cpp cannot tokenize this text.")
        return list(ids[:n])

    def piece(self, token: int) -> bytes:
        """The bytes of one token; may be half of a UTF-8 character."""
        buffer = ctypes.create_string_buffer(256)
        n = _ll().llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, True)
        return buffer.raw[: max(n, 0)]

    def ends(self, token: int) -> bool:
        """Whether this token ends the model's turn."""
        return bool(_ll().llama_vocab_is_eog(self._vocab, token))

    def chat(self, message: str) -> str:
        """One user message in the model's own chat template (llama_chat_apply_template)."""
        ll = _ll()
        template = ll.llama_model_chat_template(self._ptr, None)
        turn = (ll.llama_chat_message * 1)(ll.llama_chat_message(role=b"user", content=message.encode()))
        buffer = ctypes.create_string_buffer(2 * len(message.encode()) + 4096)
        n = ll.llama_chat_apply_template(template, turn, 1, True, buffer, len(buffer))
        return buffer.raw[:n].decode() if n > 0 else message


OnLayer = Callable[[int], None]
OnMatmul = Callable[[str, NDArray[np.float32], NDArray[np.int32], int], None]


class Context:
    """A model with a KV cache and compute buffers, ready to decode. Use as a context manager."""

    def __init__(
        self,
        model: Model,
        settings: Settings,
        *,
        on_layer: OnLayer | None = None,
        on_matmul: OnMatmul | None = None,
    ) -> None:
        """Allocate the context.

        Args:
            on_layer: called with the layer's index after each layer's output has been computed.
            on_matmul: called after each multiplication by a weight of a block, with the weight's name, the rows that
                were multiplied, shape (n, ne0), for each row which expert it went to, shape (n,), and the number of
                experts (1 for a plain matrix).

        Raises:
            EngineError: llama.cpp refused, for instance because the cache does not fit in memory.
            LayoutError: ``on_matmul`` cannot read this build's tensors.
        """
        ll = _ll()
        params = ll.llama_context_default_params()
        for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "kv_unified", "swa_full", "offload_kqv"):
            setattr(params, name, getattr(settings, name))
        params.type_k, params.type_v = CACHE_TYPES[settings.type_k], CACHE_TYPES[settings.type_v]
        params.flash_attn_type = FLASH_ATTN[settings.flash_attn]
        params.n_threads = params.n_threads_batch = settings.n_threads or usable_cores()
        params.n_outputs_max = settings.n_outputs_max or 0
        self._on_eval = _eval_callback(on_layer, on_matmul)  # llama.cpp keeps the pointer as long as the context lives
        if self._on_eval is not None:
            params.cb_eval = self._on_eval
        _log.take()
        self._ptr = ll.llama_init_from_model(model._ptr, params)
        why, self.log = _log.why(), _log.take()
        if not self._ptr:
            raise EngineError(f"llama.cpp cannot make this context: {why}.")
        self._model = model
        self.buffers = parse_buffers(self.log)
        self.kv = parse_kv(self.log)
        self.n_ctx = int(ll.llama_n_ctx(self._ptr))
        self.n_batch = int(ll.llama_n_batch(self._ptr))
        self.n_past = 0

    def __enter__(self) -> Context:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Free the cache and buffers; again is harmless."""
        if self._ptr:
            _ll().llama_free(self._ptr)
            self._ptr = None

    def decode(self, tokens: Sequence[int], *, every: bool = False) -> None:
        """Run the model over ``tokens``; logits are kept for the last one, or for ``every`` one of the last batch.

        Raises:
            EngineError: the cache is full, a token id is outside the vocabulary, or the computation failed.
        """
        ll = _ll()
        if not self._ptr:
            raise EngineError("this context is closed: make another.")
        if not tokens or not all(0 <= token < self._model.n_vocab for token in tokens):
            raise EngineError(f"give one or more token ids between 0 and {self._model.n_vocab - 1}.")
        for start in range(0, len(tokens), self.n_batch):
            part = tokens[start : start + self.n_batch]
            array = (ll.llama_token * len(part))(*part)
            batch = ll.llama_batch_get_one(array, len(part))
            if every:
                wanted = (ctypes.c_int8 * len(part))(*[1] * len(part))
                batch.logits = ctypes.cast(wanted, ctypes.POINTER(ctypes.c_int8))
            status = ll.llama_decode(self._ptr, batch)
            if status == 1:
                cells = ll.llama_n_ctx_seq(self._ptr)
                raise EngineError(
                    f"the KV cache is full: {self.n_past} of {cells} cells are taken, {len(part)} more are needed."
                )
            if status:
                raise EngineError(f"llama_decode failed with status {status}: {_log.why()}.")
            self.n_past += len(part)

    def clear(self) -> None:
        """Forget all tokens, so that the next one is the first."""
        ll = _ll()
        ll.llama_memory_clear(ll.llama_get_memory(self._ptr), True)
        self.n_past = 0

    def rows(self, tokens: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """Forget everything, run the model over ``tokens``, and yield each one's scores for the token after it.

        Memory is that of ``n_batch`` rows, whatever the number of tokens. A row, shape (n_vocab,), is llama.cpp's own
        memory and holds only until the next one is asked for.

        Raises:
            EngineError: see ``decode``.
        """
        ll = _ll()
        self.clear()
        for start in range(0, len(tokens), self.n_batch):
            part = tokens[start : start + self.n_batch]
            self.decode(part, every=True)
            for i in range(len(part)):
                yield np.ctypeslib.as_array(ll.llama_get_logits_ith(self._ptr, i), shape=(self._model.n_vocab,))

    def logits(self) -> NDArray[np.float32]:
        """Scores for the next token, shape (n_vocab,), a copy.

        Raises:
            EngineError: nothing has been decoded.
        """
        if not self._ptr or not self.n_past:
            raise EngineError("there are no logits before something is decoded.")
        return np.ctypeslib.as_array(_ll().llama_get_logits_ith(self._ptr, -1), shape=(self._model.n_vocab,)).copy()

    def stream(self, tokens: Sequence[int], *, n: int) -> Iterator[tuple[int, str]]:
        """Decode ``tokens``, then up to ``n`` most likely next ones, each with its text, until the model ends."""
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self.decode(tokens)
        for step in range(n):
            token = int(self.logits().argmax())
            if self._model.ends(token):
                return
            yield token, utf8.decode(self._model.piece(token))
            if step + 1 < n:
                self.decode([token])


def dry_run(path: Path, settings: Settings) -> DryRun:
    """Let llama.cpp plan a context without allocating anything: about 15 ms for a model of any size.

    Raises:
        EngineError: llama.cpp refused the file or the settings.
    """
    with Model(path, settings, dry=True) as model, Context(model, settings) as context:
        by_kind: dict[str, int] = {}
        for buffer in context.buffers:
            by_kind[buffer.kind] = by_kind.get(buffer.kind, 0) + buffer.bytes
        return DryRun(
            kv=context.kv,
            kv_bytes=sum(cache.bytes for cache in context.kv),
            recurrent_bytes=parse_recurrent(context.log),
            compute_bytes=by_kind.get("compute", 0),
            output_bytes=by_kind.get("output", 0),
            n_ctx=context.n_ctx,
            log=context.log,
        )


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _device_array(names: Sequence[str]) -> Any:
    """Named devices as the NULL-terminated array llama.cpp wants; None leaves the choice to llama.cpp."""
    if not names:
        return None
    lib = library("ggml")
    # The CPU takes what is left; named as a device it would get a second set of buffers.
    known = {device.name: i for i, device in enumerate(devices()) if device.kind != "CPU"}
    for name in names:
        if name not in known:
            raise EngineError(f"there is no device {name} to offload to: this build has {', '.join(known) or 'none'}.")
    assert lib is not None  # devices() found some
    return (ctypes.c_void_p * (len(names) + 1))(*[lib.ggml_backend_dev_get(known[name]) for name in names], None)


def _eval_callback(on_layer: OnLayer | None, on_matmul: OnMatmul | None) -> Any:
    if on_layer is None and on_matmul is None:
        return None
    ll, base = _ll(), library("ggml-base")
    assert base is not None  # part of the same package
    read = Reader(base)

    @ll.ggml_backend_sched_eval_callback  # type: ignore[untyped-decorator]
    def on_eval(tensor: int, ask: bool, user: Any) -> bool:
        name = read.name(tensor)
        layer = on_layer is not None and name.startswith("l_out-")
        matmul = on_matmul is not None and read.multiplies_a_weight(tensor)
        if ask:  # "do you want this tensor?" Afterwards: "go on?"
            return layer or matmul
        if layer and on_layer is not None:
            on_layer(int(name[6:]))
        if matmul and on_matmul is not None:
            on_matmul(*read.multiplied(tensor))
        return True

    return on_eval


_QUANTIZE_BUFFER_BYTES = 256 << 20  # llama.cpp's own default is 8 GiB


def quantize(
    source: Path,
    target: Path,
    *,
    ftype: int,
    threads: int,
    allow_requantize: bool = False,
    token_embedding_type: str | None = None,
    output_tensor_type: str | None = None,
    imatrix: Mapping[str, NDArray[np.float32]] | None = None,
    on_tensor: Callable[[str], None] | None = None,
) -> None:
    """Write ``source`` in another mixture (llama_model_quantize). What llama.cpp aborts on must be refused before.

    Args:
        ftype: number of the mixture, as in ``mixtures``.
        imatrix: for each tensor's name, how much each column matters, shape (n_expert × ne0,).
        on_tensor: called with a tensor's name when its turn comes.

    Raises:
        EngineError: llama.cpp failed; the target may be incomplete.
    """
    ll = _ll()
    params = ll.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = ftype, threads, allow_requantize
    params.max_buf_size = _QUANTIZE_BUFFER_BYTES
    if token_embedding_type is not None:
        params.token_embedding_type = TYPES[token_embedding_type].id
    if output_tensor_type is not None:
        params.output_tensor_type = TYPES[output_tensor_type].id
    weights = {name.encode(): np.ascontiguousarray(values, np.float32) for name, values in (imatrix or {}).items()}
    entries = (ll.llama_model_imatrix_data * (len(weights) + 1))()  # the last one stays empty: it ends the list
    for entry, (name, values) in zip(entries, weights.items(), strict=False):
        data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        entry.name, entry.data, entry.size = name, data, values.size
    if weights:
        params.imatrix = entries

    def hear(text: str) -> None:
        match = re.match(r"\[ *\d+/ *\d+\] (\S+)", text)
        if match and on_tensor:
            on_tensor(match[1])

    _log.take()
    _log.hear = hear
    try:
        status = ll.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params))
    finally:
        _log.hear = None
    why = _log.why().rpartition("failed to quantize: ")[2]  # the line may begin with the tensor at hand
    _log.take()
    if status:
        raise EngineError(f"llama.cpp cannot quantize {source.name}: {why}.")


__all__ = [
    "PINNED",
    "Buffer",
    "Context",
    "Device",
    "DryRun",
    "EngineError",
    "EngineInfo",
    "KVCache",
    "Model",
    "cpu_features",
    "devices",
    "dry_run",
    "info",
    "installed_version",
    "quantize",
    "usable_cores",
    "version_problem",
]
