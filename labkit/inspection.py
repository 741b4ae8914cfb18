"""What ``labkit inspect`` prints: a model's header, and memory and quantized sizes predicted from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit import gguf, predict
from labkit.experiments import dry_run
from labkit.gguf import Header
from labkit.models import lookup, quant_plan
from labkit.settings import Settings
from labkit.units import fmt_bytes


@dataclass(frozen=True)
class Context:
    """Memory that one way of running the model takes beside the weights.

    ``compute_from`` says how ``compute_bytes`` was found: ``formula``, ``dry run``, or ``estimate``.
    """

    settings: Settings
    cache: predict.Cache
    compute_bytes: int
    output_bytes: int
    compute_from: str


def context(model: lookup.Found, header: Header, settings: Settings) -> Context:
    """Cache by formula; compute buffer by formula where that is exact, else as llama.cpp plans it.

    Raises:
        SettingsError: llama.cpp would refuse these settings for this model.
    """
    predict.check(header, settings)
    compute, exact = predict.compute_bytes(header, settings)
    source = "formula" if exact else "estimate"
    if (planned := dry_run.compute_bytes(model.path, header, settings)) is not None:
        compute, source = planned, "dry run"
    return Context(settings, predict.cache(header, settings), compute, predict.output_bytes(header, settings), source)


@dataclass(frozen=True)
class Inspection:
    """A header, and the predictions that were asked for."""

    header: Header
    context: Context | None = None
    quant: quant_plan.QuantPlan | None = None

    def to_dict(self) -> dict[str, Any]:
        """As ``labkit inspect --json`` prints it."""
        header, context = self.header, self.context
        values: dict[str, Any] = {
            "arch": header.arch,
            "n_layer": header.n_layer,
            "n_params": header.n_params,
            "file_bytes": header.file_bytes,
            "tensor_bytes": header.tensor_bytes,
            "bpw": header.bpw,
            "types": {name: {"tensors": n, "bytes": size} for name, (n, size) in header.types.items()},
            "metadata": {key: _plain(value) for key, value in header.metadata.items()},
        }
        if context is not None:
            values |= {
                "n_ctx": context.settings.n_ctx,
                "kv_bytes": context.cache.kv_bytes,
                "kv_exact": context.cache.exact,
                "recurrent_bytes": context.cache.recurrent_bytes,
                "compute_bytes": context.compute_bytes,
                "compute_exact": context.compute_from != "estimate",
                "compute_from": context.compute_from,
                "output_bytes": context.output_bytes,
            }
        if self.quant is not None:
            values["quant"] = self.quant.to_dict()
        return values

    def __str__(self) -> str:
        header = self.header
        weights = f"{header.n_params / 1e9:.3g} billion weights, {header.bpw or 0:.2f} bits each"
        lines = [
            f"{header.arch}, {header.n_layer} layers, {weights}",
            f"file {fmt_bytes(header.file_bytes)}, of it {fmt_bytes(header.tensor_bytes)} tensors",
            *_by_type(header.types),
        ]
        if self.context is not None:
            lines += _context_lines(self.context)
        if self.quant is not None:
            lines += _quant_lines(self.quant)
        return "\n".join(lines)


def inspect(name: str, *, settings: Settings | None = None, quant: str | None = None) -> Inspection:
    """Read a model's header and predict what was asked for.

    Args:
        name: a path, ``smollm2``, or ``SHAPE:QUANT``.
        settings: how it would be run, to predict cache and buffers.
        quant: a file type, to predict what quantizing to it would give.

    Raises:
        GGUFError, ModelError: there is no such model, or it cannot be read.
        SettingsError: llama.cpp would refuse these settings for this model.
    """
    found = lookup.find(name)
    header = gguf.read_header(found.path)
    return Inspection(
        header,
        context=None if settings is None else context(found, header, settings),
        quant=quant_plan.plan_quant(header, quant) if quant else None,
    )


def _context_lines(context: Context) -> list[str]:
    """Cache and buffers as lines of text."""
    settings, cache = context.settings, context.cache
    shared = f", {settings.n_seq_max} sequences" if settings.n_seq_max > 1 else ""
    known = "" if cache.exact else f" (about: {cache.reason})"
    lines = [f"KV cache {fmt_bytes(cache.kv_bytes)} for {settings.n_ctx} tokens{shared}{known}"]
    if cache.recurrent_bytes:
        lines.append(f"recurrent state {fmt_bytes(cache.recurrent_bytes)}, whatever the context")
    about = "about " if context.compute_from == "estimate" else ""
    lines.append(f"compute buffer {about}{fmt_bytes(context.compute_bytes)} ({context.compute_from})")
    return lines


def _quant_lines(plan: quant_plan.QuantPlan) -> list[str]:
    """A quantization plan as lines of text."""
    lines = [f"as {plan.quant}: file {fmt_bytes(plan.file_bytes)}, {plan.bpw:.2f} bits per weight"]
    lines += _by_type(plan.types)
    if plan.fallbacks:
        share = f"{plan.fallbacks} of {len(plan.tensors)} tensors fall back"
        lines.append(f"{share}: their rows are no whole number of blocks")
    return lines


def _by_type(types: Any) -> list[str]:
    """A line of text for each tensor type, the one with most bytes first."""
    ordered = sorted(types.items(), key=lambda item: -item[1][1])
    return [f"  {name:8} {n:4} tensors {fmt_bytes(size):>10}" for name, (n, size) in ordered]


def _plain(value: Any) -> Any:
    """Metadata as JSON can hold it; a long array (a vocabulary) as its length."""
    if isinstance(value, (str, int, float, bool)):
        return value
    return list(value) if len(value) <= 64 else {"array": len(value), "of": value.item_type}
