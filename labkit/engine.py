"""llama.cpp, with its own names and every knob the labs turn. The only module that imports llama_cpp.

llama.cpp may abort the process on a bad file, so anything that loads a model runs in a child (see ``experiment``);
importing this module costs nothing, llama_cpp itself is loaded on first use.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.enginelog import (
    Buffer,
    KVCache,
    SlotMap,
    first_reason,
    no_room,
    parse_buffers,
    parse_kv,
    parse_recurrent,
    parse_slot_maps,
)
from labkit.ggml_types import TYPES
from labkit.ggmltensor import Reader
from labkit.settings import CACHE_TYPES, CELL_PADDING, FLASH_ATTN, LOAD_MODES, LOOPBACK, Settings
from labkit.units import fmt_bytes

PINNED = "0.3.36"
KV_DEBUG = "LLAMA_KV_CACHE_DEBUG"  # read when a context is made; 3: log every cell's sequence and position
_CPU_FEATURES = ("avx2", "avx512", "neon", "dotprod", "matmul_int8", "sve", "vxe", "amx_int8")


class EngineError(RuntimeError):
    """llama.cpp said no; the message is one sentence with its reason."""


class CacheFull(EngineError):
    """A batch finds no room in the KV cache (llama_decode's status 1). Nothing of that batch was placed."""


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
        self.debug = False  # thousands of lines about graph inputs, and the map of the cells
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
        if level != 1 or _log.debug:  # 1 is debug
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
    found = []
    for i in range(lib.ggml_backend_dev_count()):
        dev = lib.ggml_backend_dev_get(i)
        kind = {0: "CPU", 1: "GPU", 2: "IGPU", 3: "ACCEL"}.get(base.ggml_backend_dev_type(dev), "other")
        name = base.ggml_backend_dev_name(dev).decode()
        description = base.ggml_backend_dev_description(dev).decode() or platform.processor()
        found.append(Device(name, description, kind, _total_bytes(dev)))
    return tuple(found)


class Model:
    """A loaded model. Use as a context manager: freeing is explicit, Python's ``del`` may come too late."""

    def __init__(self, path: Path, settings: Settings, *, dry: bool = False, endpoint: str | None = None) -> None:
        """Load ``path``.

        Args:
            dry: plan without allocating or reading weights.
            endpoint: where the device ``loopback`` listens, if it is among the settings' devices
                (``labkit.device.Loopback``). llama.cpp aborts this process if nothing listens there.

        Raises:
            EngineError: llama.cpp refused the file, or a named device does not exist.
        """
        ll = _ll()
        params = ll.llama_model_default_params()
        params.load_mode = 0 if dry else LOAD_MODES[settings.load_mode]
        params.no_alloc = dry
        params.use_extra_bufts = settings.repack
        params.n_gpu_layers = settings.n_gpu_layers
        self._devices = _device_array(settings.devices, endpoint)  # llama.cpp keeps the pointer while it loads
        if self._devices is not None:
            params.devices = ctypes.cast(self._devices, ctypes.c_void_p)
        _log.take()
        self._ptr = ll.llama_model_load_from_file(os.fsencode(path), params)
        why, self.log = _log.why(), _log.take()
        if not self._ptr:
            raise EngineError(f"llama.cpp cannot load {path.name}: {_explained(why, 'n_gpu_layers')}.")
        self.path = path
        self.buffers = _buffers(self.log)
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
        map_cells: bool = False,
    ) -> None:
        """Allocate the context.

        Args:
            on_layer: called with the layer's index after each layer's output has been computed.
            on_matmul: called after each multiplication by a weight of a block, with the weight's name, the rows that
                were multiplied, shape (n, ne0), for each row which expert it went to, shape (n,), and the number of
                experts (1 for a plain matrix).
            map_cells: make ``slot_maps`` possible.

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
        if map_cells:
            # slot_maps needs a batch larger than the cache, which llama.cpp grants only where attention is not causal.
            params.n_batch = max(settings.n_batch, settings.n_ctx + CELL_PADDING + 1)
            params.attention_type = ll.LLAMA_ATTENTION_TYPE_NON_CAUSAL
        _log.take()
        with _environment(KV_DEBUG, "3" if map_cells else None):
            self._ptr = ll.llama_init_from_model(model._ptr, params)
        why, self.log = _log.why(), _log.take()
        if not self._ptr:
            why = _explained(why, "n_gpu_layers, n_ctx or n_ubatch")
            raise EngineError(f"llama.cpp cannot make this context: {why}.")
        if map_cells:
            ll.llama_set_causal_attn(self._ptr, True)  # computing is as always
        self._model, self._map_cells = model, map_cells
        self.buffers = _buffers(self.log)
        self.kv = parse_kv(self.log)
        self.n_ctx = int(ll.llama_n_ctx(self._ptr))
        self.n_batch = int(ll.llama_n_batch(self._ptr))
        self.n_seq_max = settings.n_seq_max
        self.n_streams = 1 if settings.kv_unified else settings.n_seq_max  # caches that are kept apart
        self._decoded = self._edited = False

    def __enter__(self) -> Context:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Free the cache and buffers; again is harmless."""
        if self._ptr:
            _ll().llama_free(self._ptr)
            self._ptr = None

    @property
    def n_past(self) -> int:
        """Position of the next token of sequence 0: the tokens it holds, as long as none were removed from it."""
        span = self.positions(0)
        return span[1] + 1 if span else 0

    def decode(self, tokens: Sequence[int], *, every: bool = False, seq: int = 0) -> None:
        """Run the model over ``tokens``; logits are kept for the last one, or for ``every`` one of the last batch.

        The tokens follow on sequence ``seq`` at its next positions. They are computed ``n_batch`` at a time.

        Raises:
            CacheFull: there is no room for a batch; those before it stay.
            EngineError: a token id or a sequence does not exist, or the computation failed.
        """
        ll = _ll()
        self._check_seq(seq)
        if not tokens or not all(0 <= token < self._model.n_vocab for token in tokens):
            raise EngineError(f"give one or more token ids between 0 and {self._model.n_vocab - 1}.")
        for start in range(0, len(tokens), self.n_batch):
            part = tokens[start : start + self.n_batch]
            array = (ll.llama_token * len(part))(*part)
            batch = ll.llama_batch_get_one(array, len(part))
            if every:
                wanted = (ctypes.c_int8 * len(part))(*[1] * len(part))
                batch.logits = ctypes.cast(wanted, ctypes.POINTER(ctypes.c_int8))
            of = _BatchOf(batch, seq, len(part))  # without positions: llama.cpp continues the sequence's own
            status = ll.llama_decode(self._ptr, of.batch)
            if status == 1:
                raise CacheFull(f"the KV cache is full: {self._how_full(seq, len(part))}.")
            if status:
                raise EngineError(f"llama_decode failed with status {status}: {_log.why()}.")
            self._decoded = True
        # A device works on while the host goes ahead. Who writes text needs the logits first, and so does a clock.
        ll.llama_synchronize(self._ptr)

    def _how_full(self, seq: int, n: int) -> str:
        cells = _ll().llama_n_ctx_seq(self._ptr)
        if self._edited or self.n_streams < self.n_seq_max:  # positions no longer tell how many cells are taken
            return f"{n} cells are needed, and fewer of its {cells} are free"
        last = self.positions(seq)
        return f"{last[1] + 1 if last else 0} of {cells} cells are taken, {n} more are needed"

    def clear(self) -> None:
        """Forget all tokens, so that the next one is the first."""
        ll = _ll()
        ll.llama_memory_clear(ll.llama_get_memory(self._ptr), True)
        self._decoded = self._edited = False

    def positions(self, seq: int) -> tuple[int, int] | None:
        """The first and last position that sequence ``seq`` holds; None when it holds none."""
        memory = self._memory(seq)
        last = int(_ll().llama_memory_seq_pos_max(memory, seq))
        return None if last < 0 else (int(_ll().llama_memory_seq_pos_min(memory, seq)), last)

    def remove(self, seq: int, p0: int = 0, p1: int = -1) -> None:
        """Forget the positions from ``p0`` up to, not including, ``p1`` of a sequence; -1 means to its end.

        Raises:
            EngineError: there is no such sequence, or this model keeps a state from which no part can be taken.
        """
        if not _ll().llama_memory_seq_rm(self._memory(seq), seq, p0, p1):
            raise EngineError("this model's recurrent state cannot forget some of its tokens: remove all of them.")
        self._edited = True

    def copy(self, src: int, dst: int, p0: int = 0, p1: int = -1) -> None:
        """Let sequence ``dst`` have the tokens of ``src`` too, from ``p0`` up to ``p1``.

        In one stream (``kv_unified``) they share cells and nothing is copied. Where every sequence has a stream of its
        own, what ``dst`` held is replaced, and the bytes are copied before the next batch.

        Raises:
            EngineError: there is no such sequence, or a part is to be copied between streams.
        """
        memory = self._memory(src)
        self._check_seq(dst)
        if self.n_streams > 1 and (p0 > 0 or p1 >= 0):  # llama.cpp would abort
            raise EngineError("between sequences that do not share cells only all can be copied: use kv_unified.")
        _ll().llama_memory_seq_cp(memory, src, dst, p0, p1)

    def keep(self, seq: int) -> None:
        """Forget every other sequence of the same stream: with ``kv_unified`` all others, without it none."""
        _ll().llama_memory_seq_keep(self._memory(seq), seq)

    def shift(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Add ``delta`` to the positions from ``p0`` up to ``p1``; keys are rotated before the next batch.

        A cell has one position: where it is shared, it changes for the other sequences as well.

        Raises:
            EngineError: there is no such sequence, or this model's positions cannot be changed afterwards.
        """
        memory = self._memory(seq)
        if not _ll().llama_memory_can_shift(memory):
            raise EngineError("the positions of this model's cache cannot be shifted.")
        _ll().llama_memory_seq_add(memory, seq, p0, p1, delta)
        self._edited = True

    def slot_maps(self) -> tuple[SlotMap, ...]:
        """Which cell belongs to which sequence now, one map for each stream. Needs ``map_cells``.

        llama.cpp logs this map when it looks for room for a batch, before it places anything. So it is handed a batch
        with one token more than there are cells. It logs the map, refuses (status 1), computes nothing, and leaves
        cells, positions and head as they were. Only what any next batch would do first, it does: carry out a pending
        shift or copy. Source: llama_kv_cache::find_slot and prepare in src/llama-kv-cache.cpp.

        Raises:
            EngineError: the model has no cache of this kind, or more than one, of which the log would show the first.
        """
        ll = _ll()
        if not self._map_cells:
            raise EngineError("make this context with map_cells=True: llama.cpp decides then whether to log the cells.")
        if len(self.kv) != 1 or parse_recurrent(self.log):
            raise EngineError("this model does not keep all its context in one cache: only such a cache has a map.")
        n = int(ll.llama_n_ctx_seq(self._ptr)) + 1
        array = (ll.llama_token * n)()
        found = []
        for seq in range(self.n_streams):
            of = _BatchOf(ll.llama_batch_get_one(array, n), seq, n)
            _log.take()
            _log.debug = True
            try:
                status = ll.llama_decode(self._ptr, of.batch)
            finally:
                _log.debug = False
            maps = parse_slot_maps(_log.take())
            if status != 1 or not maps:
                raise EngineError(f"llama.cpp logged no map of its cells (llama_decode's status was {status}).")
            found.append(maps[0])  # a batch is tried in parts of n_ubatch: before the first, nothing had been placed
        return tuple(found)

    def _memory(self, seq: int) -> Any:
        self._check_seq(seq)
        return _ll().llama_get_memory(self._ptr)

    def _check_seq(self, seq: int) -> None:
        if not self._ptr:
            raise EngineError("this context is closed: make another.")
        if not 0 <= seq < self.n_seq_max:  # llama.cpp would abort
            raise EngineError(f"there is no sequence {seq}: with n_seq_max={self.n_seq_max} they start at 0.")

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
        if not self._ptr or not self._decoded:
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


class _BatchOf:
    """A batch whose tokens all belong to one sequence; keeps alive the arrays that it points to."""

    def __init__(self, batch: Any, seq: int, n: int) -> None:
        int32_p = ctypes.POINTER(ctypes.c_int32)
        self._one = (ctypes.c_int32 * 1)(seq)
        self._counts = (ctypes.c_int32 * n)(*[1] * n)
        self._rows = (int32_p * n)(*[ctypes.cast(self._one, int32_p)] * n)
        batch.n_seq_id = ctypes.cast(self._counts, int32_p)
        batch.seq_id = ctypes.cast(self._rows, ctypes.POINTER(int32_p))
        self.batch = batch


@contextlib.contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    """Set an environment variable for a while; None leaves it as it is."""
    before = os.environ.get(name)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        if value is not None:
            os.environ.pop(name)
            if before is not None:
                os.environ[name] = before


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


def _device_array(names: Sequence[str], endpoint: str | None) -> Any:
    """Named devices as the NULL-terminated array llama.cpp wants; None leaves the choice to llama.cpp."""
    if not names:
        return None
    lib = library("ggml")
    # The CPU takes what is left; named as a device it would get a second set of buffers.
    known = {device.name: i for i, device in enumerate(devices()) if device.kind != "CPU"}
    assert lib is not None  # devices() found some
    found = []
    for name in names:
        if name == LOOPBACK and endpoint is not None:
            found.append(_remote_device(endpoint))
        elif name in known:
            found.append(lib.ggml_backend_dev_get(known[name]))
        else:
            raise EngineError(f"there is no device {name} to offload to: this build has {', '.join(known) or 'none'}.")
    return (ctypes.c_void_p * (len(names) + 1))(*found, None)


_remote: dict[str, int] = {}  # the loopback devices in use, by llama.cpp's name for their buffers


def _remote_device(endpoint: str) -> int:
    """The first device of an RPC server (ggml-rpc.h), which must be there: ggml aborts where nothing listens."""
    rpc, base = library("ggml-rpc"), library("ggml-base")
    if rpc is None or base is None:
        raise EngineError("this build of llama-cpp-python has no RPC backend, so it has no loopback device.")
    rpc.ggml_backend_rpc_add_server.restype = base.ggml_backend_reg_dev_get.restype = ctypes.c_void_p
    base.ggml_backend_reg_dev_get.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    server = rpc.ggml_backend_rpc_add_server(endpoint.encode())
    device: int = base.ggml_backend_reg_dev_get(server, 0)
    _remote[f"RPC0[{endpoint}]"] = device
    return device


def _buffers(log: Sequence[str]) -> tuple[Buffer, ...]:
    """What the log says was allocated, with the loopback device under its own name."""
    return tuple(replace(b, device=LOOPBACK) if b.device in _remote else b for b in parse_buffers(log))


def _explained(why: str, advice: str) -> str:
    """A reason from the log; when a device had no room, with its size and what to lower."""
    refused = no_room(why)
    if refused is None:
        return why
    name, wanted = refused
    if name in _remote:
        name, total = LOOPBACK, _total_bytes(_remote[name])
    else:
        total = next((device.total_bytes for device in devices() if device.name == name and device.kind != "CPU"), None)
    if total is None:
        return why
    return f"{name} ({fmt_bytes(total)}) has no room for a buffer of {fmt_bytes(wanted)}; lower {advice}"


def _total_bytes(device: int) -> int | None:
    """How much memory a device has, or None where it does not say."""
    base = library("ggml-base")
    assert base is not None  # part of the same package
    base.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, *[ctypes.POINTER(ctypes.c_size_t)] * 2]
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    base.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    return total.value or None


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
    "CacheFull",
    "Context",
    "Device",
    "DryRun",
    "EngineError",
    "EngineInfo",
    "KVCache",
    "Model",
    "SlotMap",
    "cpu_features",
    "devices",
    "dry_run",
    "info",
    "installed_version",
    "quantize",
    "usable_cores",
    "version_problem",
]
