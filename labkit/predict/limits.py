"""Refuse settings that do not suit a model, before llama.cpp does."""

from __future__ import annotations

from labkit.gguf import Header
from labkit.gguf.types import TYPES
from labkit.predict.hparams import number
from labkit.predict.layers import is_latent, kv_heads, kv_widths, layers
from labkit.settings import Settings, SettingsError

STRETCH = 32  # times the trained context: the most of any published model, by rotary scaling (Yarn-Llama-2-128k)


def check(header: Header, settings: Settings) -> None:
    """Refuse what llama.cpp would refuse for this model, and a context far longer than the trained one.

    Raises:
        SettingsError: see ``too_long`` and ``check_types``.
    """
    if problem := too_long(header, settings):
        raise SettingsError(problem)
    check_types(header, settings)


def too_long(header: Header, settings: Settings) -> str | None:
    """A sentence if the context is more than 32 times the trained one, else None."""
    trained = number(header, "context_length")
    if not trained or settings.n_ctx <= STRETCH * trained:
        return None
    return (
        f"n_ctx is {settings.n_ctx:,}: this model was trained for {trained:,} tokens of context, and models have been "
        f"stretched to {STRETCH} times that at most, so write {STRETCH * trained:,} or less."
    )


def check_types(header: Header, settings: Settings) -> None:
    """Refuse cache types that llama.cpp would refuse for this model (llama_init_from_model).

    Raises:
        SettingsError: heads are no whole number of the cache type's blocks; or K and V differ in type where one vector
            stands for both.
    """
    if (is_latent(header) or header.arch == "deepseek4") and settings.type_k != settings.type_v:
        raise SettingsError(
            f"type_k is {settings.type_k} and type_v {settings.type_v}: this model keeps one vector for both, so "
            f"write the same type for both."
        )
    if settings.flash_attn == "off":
        return
    for i, layer in enumerate(layers(header)):
        heads = kv_heads(header, i)
        if layer.kind not in ("full", "window") or not heads:
            continue
        for name, width in zip(("k", "v"), kv_widths(header, i), strict=True):
            block = TYPES[getattr(settings, f"type_{name}").upper()].block_elems
            if width // heads % block:
                raise SettingsError(
                    f"type_{name} is {getattr(settings, f'type_{name}')}, whose blocks hold {block} values: this "
                    f"model's heads have {width // heads}, no multiple of that, so write f16."
                )
