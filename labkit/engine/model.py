"""A loaded model."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import TracebackType

from labkit.engine.bindings import llama, log
from labkit.engine.devices import device_array, explained, named_buffers
from labkit.engine.install import EngineError
from labkit.settings import LOAD_MODES, Settings


class Model:
    """A loaded model. Use it as a context manager, so that its memory is freed at the end of the block."""

    def __init__(self, path: Path, settings: Settings, *, dry: bool = False, endpoint: str | None = None) -> None:
        """Load ``path``.

        Args:
            dry: plan without allocating or reading weights.
            endpoint: where the device ``loopback`` listens, if it is among the settings' devices. llama.cpp aborts
                this process if nothing listens there.

        Raises:
            EngineError: llama.cpp refused the file, or a named device does not exist.
        """
        ll = llama()
        params = ll.llama_model_default_params()
        params.load_mode = 0 if dry else LOAD_MODES[settings.load_mode]
        params.no_alloc = dry
        params.use_extra_bufts = settings.repack
        params.n_gpu_layers = settings.n_gpu_layers
        self._devices = device_array(settings.devices, endpoint)  # llama.cpp keeps the pointer while it loads
        if self._devices is not None:
            params.devices = ctypes.cast(self._devices, ctypes.c_void_p)
        log.take()
        self._ptr = ll.llama_model_load_from_file(os.fsencode(path), params)
        why, self.log = log.why(), log.take()
        if not self._ptr:
            raise EngineError(f"llama.cpp cannot load {path.name}: {explained(why, 'n_gpu_layers')}.")
        self.path = path
        self.buffers = named_buffers(self.log)
        self._vocab = ll.llama_model_get_vocab(self._ptr)
        self.n_vocab = int(ll.llama_vocab_n_tokens(self._vocab))
        # The token with which every text for this model begins, if there is one.
        self.bos = int(ll.llama_vocab_bos(self._vocab)) if ll.llama_vocab_get_add_bos(self._vocab) else None
        self.n_layer = int(ll.llama_model_n_layer(self._ptr))

    def __enter__(self) -> Model:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Free the model's memory; calling it again is harmless."""
        if self._ptr:
            llama().llama_model_free(self._ptr)
            self._ptr = None

    def tokenize(self, text: str) -> list[int]:
        """Text to token ids, special tokens such as ``<|im_start|>`` included.

        Raises:
            EngineError: the model has no vocabulary (a forged one).
        """
        ll = llama()
        if ll.llama_vocab_type(self._vocab) == 0:
            raise EngineError("this model is forged and has no vocabulary: give token ids, not text.")
        raw = text.encode()
        ids = (ll.llama_token * (len(raw) + 8))()
        n = ll.llama_tokenize(self._vocab, raw, len(raw), ids, len(ids), True, True)
        if n < 0:
            raise EngineError("llama.cpp cannot tokenize this text.")
        return list(ids[:n])

    def piece(self, token: int) -> bytes:
        """The bytes of one token, possibly a part of a UTF-8 character."""
        buffer = ctypes.create_string_buffer(256)
        n = llama().llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, True)
        return buffer.raw[: max(n, 0)]

    def ends(self, token: int) -> bool:
        """Whether this token ends the model's turn."""
        return bool(llama().llama_vocab_is_eog(self._vocab, token))

    def chat(self, message: str) -> str:
        """One user message in the model's own chat template (llama_chat_apply_template)."""
        ll = llama()
        template = ll.llama_model_chat_template(self._ptr, None)
        turn = (ll.llama_chat_message * 1)(ll.llama_chat_message(role=b"user", content=message.encode()))
        buffer = ctypes.create_string_buffer(2 * len(message.encode()) + 4096)
        n = ll.llama_chat_apply_template(template, turn, 1, True, buffer, len(buffer))
        return buffer.raw[:n].decode() if n > 0 else message
