"""What is refused before a measurement starts anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labkit.experiments.measure import measure
from labkit.gguf import GGUFError
from labkit.models.lookup import ModelError
from labkit.settings import SettingsError


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tokens": -1}, "tokens is -1: write a whole number from 0."),
        ({"prompt_tokens": 0}, "prompt_tokens is 0: write a whole number from 1."),
        ({"tokens": 600}, "8 + 600 tokens do not fit in n_ctx=512: raise n_ctx or decode fewer."),
        ({"evict": "all"}, "evict is 'all': choose 'readahead', 'random' or None."),
        ({"evict": "random", "load_mode": "none"}, "evict='random' needs load_mode='mmap'"),
        ({"prompt": "hi", "layers": True}, "layers and evict need made-up tokens: leave prompt out."),
        ({"prompt": "hi", "evict": "random"}, "layers and evict need made-up tokens: leave prompt out."),
        ({"sample_hz": 0}, "sample_hz is 0 and hold_s 0.0: write a rate above 0"),
        ({"hold_s": -1}, "sample_hz is 50.0 and hold_s -1: write a rate above 0 and a time from 0."),
        ({"cap": 0}, "cap must be more than 0 bytes."),
        ({"cap": -1}, "-1 is not a size"),
        ({"cap": "600MB"}, "'600MB' is ambiguous"),
        ({"n_ctxx": 1}, "n_ctxx is not a setting: did you mean n_ctx?"),
        ({"type_v": "q8_0", "flash_attn": "off"}, "type_v=q8_0 needs flash attention"),
    ],
)
def test_wrong_calls_are_refused_before_anything_starts(wrong: dict[str, Any], message: str, tiny: Path) -> None:
    with pytest.raises(ValueError) as error:
        measure(tiny, **wrong)
    assert str(error.value).startswith(message)
    assert isinstance(error.value, SettingsError) or "cap" in wrong


def test_what_is_no_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no model 'nonsense'"):
        measure("nonsense")
    with pytest.raises(GGUFError, match="no such file"):
        measure(tmp_path / "missing.gguf")
    with pytest.raises(GGUFError, match="directory"):
        measure(tmp_path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"device_memory": "1GiB"}, r"write devices=\('loopback',\) too"),
        ({"device_memory": "1GiB", "devices": ("CUDA0",)}, r"write devices=\('loopback',\) too"),
        ({"device_memory": 0, "devices": ("loopback",)}, "more than 0 bytes"),
        ({"devices": ("loopback", "loopback")}, "twice"),
    ],
)
def test_a_size_without_a_device_is_refused(wrong: dict[str, Any], message: str, tiny: Path) -> None:
    with pytest.raises(SettingsError, match=message):
        measure(tiny, **wrong)
