"""Whether a measurement may start: not if settings contradict each other, or if it could exhaust the machine."""

from __future__ import annotations

from labkit.experiments.watch import Companion
from labkit.predict import Predicted
from labkit.settings import LOOPBACK, Settings, SettingsError
from labkit.system.caps import available as cap_available
from labkit.system.machine import Machine
from labkit.units import fmt_bytes

SAFE_SHARE = 0.8  # of the available memory; a run that may need more could exhaust the machine itself
EVICTIONS = (None, "readahead", "random")


def check_settings(
    wanted: Settings,
    *,
    tokens: int,
    prompt_tokens: int,
    evict: str | None,
    cap_bytes: int | None,
    vram_bytes: int | None,
) -> None:
    """Refuse arguments that contradict each other, on whatever machine.

    Raises:
        SettingsError: see ``measure``.
    """
    for name, value, least in (("tokens", tokens, 0), ("prompt_tokens", prompt_tokens, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise SettingsError(f"{name} is {value!r}: write a whole number from {least}.")
    if evict not in EVICTIONS:
        raise SettingsError(f"evict is {evict!r}: choose 'readahead', 'random' or None.")
    if evict and "mmap" not in wanted.load_mode:
        raise SettingsError(f"evict={evict!r} needs load_mode='mmap': without a mapping there are no pages to drop.")
    if tokens + prompt_tokens > wanted.n_ctx:
        raise SettingsError(
            f"{prompt_tokens} + {tokens} tokens do not fit in n_ctx={wanted.n_ctx}: raise n_ctx or decode fewer."
        )
    if cap_bytes is not None and cap_bytes <= 0:
        raise SettingsError("cap must be more than 0 bytes.")
    if vram_bytes is not None and LOOPBACK not in wanted.devices:
        raise SettingsError(f"device_memory is the size of the loopback device: write devices=('{LOOPBACK}',) too.")
    if vram_bytes is not None and vram_bytes <= 0:
        raise SettingsError("device_memory must be more than 0 bytes.")
    if wanted.devices.count(LOOPBACK) > 1:
        raise SettingsError(f"devices names {LOOPBACK} twice: there is one.")


def refusal(
    predicted: Predicted,
    wanted: Settings,
    cap_bytes: int | None,
    here: Machine,
    *,
    loopback_pinned_bytes: int,
    companion: Companion | None,
) -> str | None:
    """Why this run must not start, or None. A killed child is a result; a machine without memory would be an accident.

    Args:
        loopback_pinned_bytes: what the loopback device takes that the kernel cannot take back.
    """
    if cap_bytes is not None:
        method = cap_available()
        if method.how is None:
            return f"no memory cap is possible here: {method.reason}"
    if here.available_bytes is None:
        return None
    # anon_floor_bytes already counts weights read to the heap.
    pinned = predicted.anon_floor_bytes + min(predicted.locked_bytes, predicted.mapped_bytes)
    elsewhere = loopback_pinned_bytes  # a cap limits the host's process, and a companion inside, but not the device
    if companion is not None:
        pinned += companion.inside_bytes
        elsewhere += companion.outside_bytes
    worst = elsewhere + (pinned if cap_bytes is None else min(pinned, cap_bytes))
    safe = int(SAFE_SHARE * here.available_bytes)
    if worst <= safe:
        return None
    parts = {
        "no repacking (repack=False, --no-repack)": predicted.repack_bytes,
        "load_mode=mmap": max(predicted.heap_bytes, predicted.locked_bytes),
        "a smaller n_ctx or cache type": predicted.kv_bytes + predicted.compute_bytes,
        "fewer layers on the loopback device (n_gpu_layers)": loopback_pinned_bytes,
    }
    if companion is not None:
        parts["a smaller ballast"] = companion.inside_bytes + companion.outside_bytes
    helps = max(parts, key=lambda name: parts[name])  # name the largest part, so that the advice does help
    room = safe - elsewhere
    capped = f", or let it be killed safely under a cap of at most {fmt_bytes(room)}" if room > 0 else ""
    return (
        f"it would need {fmt_bytes(worst)} that the kernel cannot take back, and {fmt_bytes(here.available_bytes)} are "
        f"available: choose {helps}{capped}."
    )
