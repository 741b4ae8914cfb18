"""Load a model in a child process, decode, and compare with the prediction.

The exit status is 1 if the run did not end well: it was killed, refused, or took too long.
"""

from __future__ import annotations

import argparse
import shlex
from datetime import date
from typing import TYPE_CHECKING

from labkit.commands import NO, OK
from labkit.commands.options import LOAD, MODEL, add_context, chosen
from labkit.units import fmt_bytes, fmt_ms

if TYPE_CHECKING:
    from labkit.experiments.run import Run


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help=MODEL)
    add("--load", dest="load_mode", metavar="MODE", help=LOAD)
    add(
        "--no-repack",
        dest="repack",
        action="store_false",
        default=None,
        help="do not copy weights into the CPU's own layout",
    )
    add_context(parser, "tokens of context, n_ctx (default 512)")
    add("--ngl", dest="n_gpu_layers", type=int, metavar="N", help="layers on a device, n_gpu_layers (default 0)")
    add(
        "--device",
        dest="devices",
        action="append",
        metavar="NAME",
        help="a device that labkit doctor lists, or loopback, which is a second process (repeat for several)",
    )
    add("--vram", metavar="SIZE", help="memory of the loopback device, as in 2GiB (default: no limit)")
    add("--threads", dest="n_threads", type=int, metavar="N", help="n_threads (default: all usable cores)")
    add("--cap", metavar="SIZE", help="memory limit of the child, as in 600MiB")
    add("--tokens", type=int, default=8, metavar="N", help="tokens to decode (default 8)")
    add("--prompt", metavar="TEXT", help="answer this text instead of decoding made-up ids")
    add("--hold", dest="hold_s", type=float, default=0.0, metavar="S", help="stay resident for S seconds afterwards")
    add("--timeout", dest="timeout_s", type=float, default=300.0, metavar="S", help="stop it after S seconds (300)")
    add("--record", metavar="FILE", help="also save the run, labelled with machine, date and command")


def run(args: argparse.Namespace) -> int:
    from labkit import gguf, predict
    from labkit.experiments.measure import Interrupted, measure
    from labkit.experiments.recordings import labelled, save
    from labkit.models import lookup
    from labkit.settings import Settings
    from labkit.system.bandwidth import ram_bandwidth
    from labkit.system.machine import usable_cores

    given = chosen(args)
    if args.devices:
        given["devices"] = tuple(args.devices)
    predict.check(gguf.read_header(lookup.find(args.model).path), Settings.of(given))
    status = None
    threads = Settings.of(given).n_threads or usable_cores()  # bad settings are refused before anything is measured
    bandwidth = ram_bandwidth(seconds=0.3, n_threads=min(threads, usable_cores())).bytes_per_s
    try:
        run = measure(
            args.model,
            bandwidth_bytes_per_s=bandwidth,
            cap=args.cap,
            device_memory=args.vram,
            tokens=args.tokens,
            prompt=args.prompt,
            hold_s=args.hold_s,
            timeout_s=args.timeout_s,
            on_text=None if args.json else lambda text: print(text, end="", flush=True),
            **given,
        )
    except Interrupted as stopped:
        run, status = stopped.run, 130
    if args.record:
        save([labelled(run, date=date.today().isoformat(), command=shlex.join(args.words))], args.record)
    if args.json:
        print(run.to_json())
    else:
        _print(run)
    return status if status is not None else OK if run.ok else NO


def _print(run: Run) -> None:
    """Print a run as text: the outcome, then predicted and measured sizes."""
    if run.text:
        print()
    print(f"{run.model.name}: {run.outcome}" + (f", {run.reason}" if run.reason else ""))
    if run.caution:
        print(f"note: {run.caution}")
    p, m = run.predicted, run.measured
    if m is None:
        print(f"predicted: {fmt_bytes(p.rss_anon_bytes)} anonymous, {fmt_bytes(p.rss_file_bytes)} file-backed")
        return
    print(f"{'':24}{'predicted':>12}{'measured':>12}")
    rows = (
        ("anonymous memory", p.rss_anon_bytes, m.rss_anon_bytes),
        ("file-backed memory", p.rss_file_bytes, m.rss_file_bytes),
        ("locked", p.locked_bytes, m.locked_bytes),
    )
    for name, expected, found in rows:
        print(f"{name:24}{fmt_bytes(expected):>12}{'unknown' if found is None else fmt_bytes(found):>12}")
    if m.decode_ms is not None:
        least = f"≥ {fmt_ms(p.decode_ms)}" if p.decode_ms else ""
        times = run.timings.decode_ms
        spread = f"   ({fmt_ms(min(times))} to {fmt_ms(max(times))})"
        print(f"{'time per token':24}{least:>12}{fmt_ms(m.decode_ms):>12}{spread}")
    if run.cap_bytes is not None:
        peak = "unknown" if m.cap_peak_bytes is None else fmt_bytes(m.cap_peak_bytes)
        print(f"{'counted by the cap':24}{'≤ ' + fmt_bytes(run.cap_bytes):>12}{peak:>12}")
    if run.device is not None and run.device.rss_anon_bytes is not None:
        name, limit = run.device.name, run.device.memory_bytes
        held = sum(buffer.bytes for buffer in run.buffers if buffer.device == name)
        size = "" if limit is None else f"   (it has {fmt_bytes(limit)})"
        print(f"{name + ', buffers':24}{fmt_bytes(run.device.predicted_bytes or 0):>12}{fmt_bytes(held):>12}{size}")
        print(f"{name + ', anonymous':24}{'':>12}{fmt_bytes(run.device.rss_anon_bytes):>12}")
    for buffer in run.buffers:
        print(f"  {buffer.device + ' ' + buffer.kind:34}{fmt_bytes(buffer.bytes):>12}")
