"""A context: the KV cache and compute buffers with which a model decodes."""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import os
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from labkit.engine.bindings import llama, log
from labkit.engine.devices import explained, named_buffers
from labkit.engine.install import EngineError
from labkit.engine.internals.slot_maps import KV_DEBUG, SlotMap, parse_slot_maps
from labkit.engine.log import parse_kv, parse_recurrent
from labkit.engine.model import Model
from labkit.settings import CACHE_TYPES, CELL_PADDING, FLASH_ATTN, Settings
from labkit.system.machine import usable_cores

if TYPE_CHECKING:  # numpy takes a third of the time in which a child starts, and not every child needs it
    import numpy as np
    from numpy.typing import NDArray

    from labkit.engine.internals.eval_callback import OnLayer, OnMatmul


class CacheFull(EngineError):
    """The KV cache has no room for a batch (llama_decode's status 1). Nothing of that batch was placed."""


class Context:
    """A KV cache and compute buffers for a model. Use it as a context manager."""

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
                were multiplied, shape (n, ne0), the expert of each row, shape (n,), and the number of experts (1 for a
                plain matrix).
            map_cells: make ``slot_maps`` possible.

        Raises:
            EngineError: llama.cpp refused, for instance because the cache does not fit in memory.
            LayoutError: ``on_matmul`` cannot read this build's tensors.
        """
        ll = llama()
        params = ll.llama_context_default_params()
        for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "kv_unified", "swa_full", "offload_kqv"):
            setattr(params, name, getattr(settings, name))
        params.type_k, params.type_v = CACHE_TYPES[settings.type_k], CACHE_TYPES[settings.type_v]
        params.flash_attn_type = FLASH_ATTN[settings.flash_attn]
        params.n_threads = params.n_threads_batch = settings.n_threads or usable_cores()
        params.n_outputs_max = settings.n_outputs_max or 0
        if on_layer is not None or on_matmul is not None:
            from labkit.engine.internals.eval_callback import eval_callback

            # llama.cpp keeps the pointer as long as there is the context.
            self._on_eval = params.cb_eval = eval_callback(on_layer, on_matmul)
        if map_cells:
            # slot_maps needs a batch larger than the cache, which llama.cpp grants only where attention is not causal.
            params.n_batch = max(settings.n_batch, settings.n_ctx + CELL_PADDING + 1)
            params.attention_type = ll.LLAMA_ATTENTION_TYPE_NON_CAUSAL
        log.take()
        with _environment(KV_DEBUG, "3" if map_cells else None):
            self._ptr = ll.llama_init_from_model(model._ptr, params)
        why, self.log = log.why(), log.take()
        if not self._ptr:
            why = explained(why, "n_gpu_layers, n_ctx or n_ubatch")
            raise EngineError(f"llama.cpp cannot make this context: {why}.")
        if map_cells:
            ll.llama_set_causal_attn(self._ptr, True)  # from here on, tokens are computed as usual
        self._model, self._map_cells = model, map_cells
        self.buffers = named_buffers(self.log)
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
        """Free the cache and buffers; calling it again is harmless."""
        if self._ptr:
            llama().llama_free(self._ptr)
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
        ll = llama()
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
                raise EngineError(f"llama_decode failed with status {status}: {log.why()}.")
            self._decoded = True
        # A device may still be computing: wait, or the time would be measured too short.
        ll.llama_synchronize(self._ptr)

    def _how_full(self, seq: int, n: int) -> str:
        """How many cells are taken and how many are needed, as a clause."""
        cells = llama().llama_n_ctx_seq(self._ptr)
        if (
            self._edited or self.n_streams < self.n_seq_max
        ):  # the number of taken cells no longer follows from positions
            return f"{n} cells are needed, and fewer of its {cells} are free"
        last = self.positions(seq)
        return f"{last[1] + 1 if last else 0} of {cells} cells are taken, {n} more are needed"

    def clear(self) -> None:
        """Forget all tokens, so that the next one is the first."""
        ll = llama()
        ll.llama_memory_clear(ll.llama_get_memory(self._ptr), True)
        self._decoded = self._edited = False

    def positions(self, seq: int) -> tuple[int, int] | None:
        """The first and last position that sequence ``seq`` holds; None when it holds none."""
        memory = self._memory(seq)
        last = int(llama().llama_memory_seq_pos_max(memory, seq))
        return None if last < 0 else (int(llama().llama_memory_seq_pos_min(memory, seq)), last)

    def remove(self, seq: int, p0: int = 0, p1: int = -1) -> None:
        """Forget the positions from ``p0`` up to, not including, ``p1`` of a sequence; -1 means to its end.

        Raises:
            EngineError: there is no such sequence, or this model keeps a state from which no part can be taken.
        """
        if not llama().llama_memory_seq_rm(self._memory(seq), seq, p0, p1):
            raise EngineError("this model's recurrent state cannot forget some of its tokens: remove all of them.")
        self._edited = True

    def copy(self, src: int, dst: int, p0: int = 0, p1: int = -1) -> None:
        """Let sequence ``dst`` have the tokens of ``src`` too, from ``p0`` up to ``p1``.

        In one stream (``kv_unified``) both share cells and nothing is copied. Where every sequence has a stream of its
        own, the tokens of ``dst`` are replaced, and the bytes are copied before the next batch.

        Raises:
            EngineError: there is no such sequence, or a part is to be copied between streams.
        """
        memory = self._memory(src)
        self._check_seq(dst)
        if self.n_streams > 1 and (p0 > 0 or p1 >= 0):  # llama.cpp would abort
            raise EngineError("between sequences that do not share cells only all can be copied: use kv_unified.")
        llama().llama_memory_seq_cp(memory, src, dst, p0, p1)

    def keep(self, seq: int) -> None:
        """Forget every other sequence of the same stream: with ``kv_unified`` all others, without it none."""
        llama().llama_memory_seq_keep(self._memory(seq), seq)

    def shift(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Add ``delta`` to the positions from ``p0`` up to ``p1``; keys are rotated before the next batch.

        A cell has one position: where it is shared, it changes for the other sequences as well.

        Raises:
            EngineError: there is no such sequence, or this model's positions cannot be changed afterwards.
        """
        memory = self._memory(seq)
        if not llama().llama_memory_can_shift(memory):
            raise EngineError("the positions of this model's cache cannot be shifted.")
        llama().llama_memory_seq_add(memory, seq, p0, p1, delta)
        self._edited = True

    def slot_maps(self) -> tuple[SlotMap, ...]:
        """Which cell belongs to which sequence now, one map for each stream. Needs ``map_cells``.

        llama.cpp logs this map when it searches for free cells for a batch, before it places anything. So it is given a
        batch with one token more than there are cells. It logs the map, refuses the batch (status 1), computes nothing,
        and leaves cells, positions and head as they were. It does carry out a pending shift or copy, as before any
        batch. Source: llama_kv_cache::find_slot and prepare in src/llama-kv-cache.cpp.

        Raises:
            EngineError: the model has no such cache, or more than one, of which the log would show only the first.
        """
        ll = llama()
        if not self._map_cells:
            raise EngineError(
                "make this context with map_cells=True: llama.cpp decides at that time whether to log cells."
            )
        if len(self.kv) != 1 or parse_recurrent(self.log):
            raise EngineError("this model does not keep all its context in one cache: only a single cache has a map.")
        n = int(ll.llama_n_ctx_seq(self._ptr)) + 1
        array = (ll.llama_token * n)()
        found = []
        for seq in range(self.n_streams):
            of = _BatchOf(ll.llama_batch_get_one(array, n), seq, n)
            log.take()
            log.debug = True
            try:
                status = ll.llama_decode(self._ptr, of.batch)
            finally:
                log.debug = False
            maps = parse_slot_maps(log.take())
            if status != 1 or not maps:
                raise EngineError(f"llama.cpp logged no map of its cells (llama_decode's status was {status}).")
            found.append(maps[0])  # of a batch's parts (n_ubatch), the first is tried before anything is placed
        return tuple(found)

    def _memory(self, seq: int) -> Any:
        self._check_seq(seq)
        return llama().llama_get_memory(self._ptr)

    def _check_seq(self, seq: int) -> None:
        if not self._ptr:
            raise EngineError("this context is closed: make another.")
        if not 0 <= seq < self.n_seq_max:  # llama.cpp would abort
            raise EngineError(f"there is no sequence {seq}: with n_seq_max={self.n_seq_max} they start at 0.")

    def rows(self, tokens: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """Clear the cache, run the model over ``tokens``, and yield for each its logits for the token after it.

        However many tokens there are, memory is that of ``n_batch`` rows. A row, shape (n_vocab,), is llama.cpp's own
        memory, and valid only until the next row is asked for.

        Raises:
            EngineError: see ``decode``.
        """
        self.clear()
        for start in range(0, len(tokens), self.n_batch):
            part = tokens[start : start + self.n_batch]
            self.decode(part, every=True)
            for i in range(len(part)):
                yield self._row(i)

    def logits(self) -> NDArray[np.float32]:
        """Logits for the next token, shape (n_vocab,), as a copy.

        Raises:
            EngineError: nothing has been decoded.
        """
        if not self._ptr or not self._decoded:
            raise EngineError("there are no logits before something is decoded.")
        return self._row(-1).copy()

    def _row(self, i: int) -> NDArray[np.float32]:
        """The logits of the last batch's i-th token, in llama.cpp's own memory."""
        import numpy as np

        return np.ctypeslib.as_array(llama().llama_get_logits_ith(self._ptr, i), shape=(self._model.n_vocab,))

    def likeliest(self) -> int:
        """The likeliest next token (llama_sampler_init_greedy).

        Raises:
            EngineError: nothing has been decoded.
        """
        if not self._ptr or not self._decoded:
            raise EngineError("there is no next token before something is decoded.")
        ll = llama()
        sampler = ll.llama_sampler_init_greedy()
        try:
            return int(ll.llama_sampler_sample(sampler, self._ptr, -1))
        finally:
            ll.llama_sampler_free(sampler)

    def stream(self, n: int) -> Iterator[tuple[int, str, float]]:
        """Decode up to ``n`` tokens, always the likeliest next one, until the model ends its turn.

        Yields:
            Each token's id, its text (empty while a character of several tokens is incomplete), and the milliseconds
            that decoding it took.
        """
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        for _ in range(n):
            token = self.likeliest()
            if self._model.ends(token):
                return
            text = utf8.decode(self._model.piece(token))
            start = time.perf_counter()
            self.decode([token])
            yield token, text, (time.perf_counter() - start) * 1000


class _BatchOf:
    """A batch whose tokens all belong to one sequence; holds the arrays that the batch points to."""

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
