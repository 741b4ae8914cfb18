"""How a model is run, under llama.cpp's own names. Values are checked before llama.cpp gets them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

LOAD_MODES = {"auto": -1, "none": 0, "mmap": 1, "mlock": 2, "mmap+mlock": 3, "dio": 4}
FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}
# The types llama.cpp accepts for --cache-type-k/-v (common/arg.cpp, kv_cache_types), with their ggml ids.
CACHE_TYPES = {
    "f32": 0,
    "f16": 1,
    "bf16": 30,
    "q8_0": 8,
    "q5_1": 7,
    "q5_0": 6,
    "q4_1": 3,
    "q4_0": 2,
    "iq4_nl": 20,
}
LOOPBACK = "loopback"  # the name of the device that ``labkit.experiments.device`` makes
CELL_PADDING = 256  # llama_context rounds n_ctx up to a multiple of it (src/llama-context.cpp)
N_CTX_MAX = 1 << 30  # llama.cpp pads n_ctx in 32 bits; past this the padding itself overflows
N_SEQ_MAX = 256  # LLAMA_MAX_SEQ in src/llama-cparams.h


class SettingsError(ValueError):
    """A setting is unknown, out of range, or contradicts another; the message names it and says what to write."""


@dataclass(frozen=True)
class Settings:
    """One way to run a model. Names and meanings are llama.cpp's; defaults are its command line's, on the CPU.

    ``n_ctx`` is the exception: llama.cpp takes the model's trained length, which can be far more memory than a first
    look needs, so it is 512 here. ``n_threads=None`` means every core this process may use; ``n_outputs_max=None``
    means llama.cpp's own (one output row per batch position).
    """

    load_mode: str = "mmap"
    repack: bool = True
    n_ctx: int = 512
    n_batch: int = 2048
    n_ubatch: int = 512
    n_seq_max: int = 1
    kv_unified: bool = False
    swa_full: bool = False
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: str = "auto"
    offload_kqv: bool = True
    n_gpu_layers: int = 0
    devices: tuple[str, ...] = ()
    n_threads: int | None = None
    n_outputs_max: int | None = None

    def __post_init__(self) -> None:
        _choice("load_mode", self.load_mode, LOAD_MODES)
        _choice("flash_attn", self.flash_attn, FLASH_ATTN)
        _choice("type_k", self.type_k, CACHE_TYPES)
        _choice("type_v", self.type_v, CACHE_TYPES)
        for name in ("repack", "kv_unified", "swa_full", "offload_kqv"):
            if not isinstance(getattr(self, name), bool):
                raise SettingsError(f"{name} is {getattr(self, name)!r}: write True or False.")
        _between("n_ctx", self.n_ctx, 1, N_CTX_MAX)
        _between("n_batch", self.n_batch, 1, N_CTX_MAX)
        _between("n_ubatch", self.n_ubatch, 1, N_CTX_MAX)
        if self.n_ubatch > self.n_batch:
            raise SettingsError(
                f"n_ubatch is {self.n_ubatch:,} and n_batch {self.n_batch:,}: it cannot be the larger, raise both."
            )
        # With less than one token and one output row per sequence llama.cpp aborts (llama_context::output_reserve).
        _between("n_seq_max", self.n_seq_max, 1, min(N_SEQ_MAX, self.n_ctx, self.n_batch))
        _between("n_gpu_layers", self.n_gpu_layers, -1, 1 << 20)
        if self.n_threads is not None:
            _between("n_threads", self.n_threads, 1, 512)
        if self.n_outputs_max is not None:
            _between("n_outputs_max", self.n_outputs_max, self.n_seq_max, self.n_batch)
        if self.flash_attn == "off" and self.type_v not in ("f32", "f16", "bf16"):
            raise SettingsError(
                f"type_v={self.type_v} needs flash attention: without it V is stored transposed, and a quantized "
                "block cannot be written one column at a time. Use flash_attn=auto or on, or type_v=f16."
            )
        if not isinstance(self.devices, (list, tuple)) or not all(isinstance(name, str) for name in self.devices):
            raise SettingsError(f"devices is {self.devices!r}: write a list of names, as labkit doctor shows them.")
        object.__setattr__(self, "devices", tuple(self.devices))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Settings:
        """Settings from names and values; an unknown name is refused with the nearest known one.

        Raises:
            SettingsError: see the class.
        """
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}."
                raise SettingsError(f"{name} is not a setting: {hint}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "devices": list(self.devices)}


def _choice(name: str, value: str, known: Mapping[str, int]) -> None:
    """Raise SettingsError unless the value is a known one."""
    if not isinstance(value, str) or value not in known:
        raise SettingsError(f"{name} is {value!r}: choose one of {', '.join(known)}.")


def _between(name: str, value: int, low: int, high: int) -> None:
    """Raise SettingsError unless the value is a whole number between the bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingsError(f"{name} is {value!r}: write a whole number.")
    if not low <= value <= high:
        raise SettingsError(f"{name} is {value:,}: it must be between {low:,} and {high:,}.")
