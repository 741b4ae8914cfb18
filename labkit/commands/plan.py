"""Say whether a model fits here or on another machine, and with which flags.

The verdict is fits, pages (it runs, but its file does not stay in memory), or killed (without swap). The exit status is
1 unless it fits. The model runs only with --verify.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from labkit.commands import NO, OK
from labkit.commands.options import LOAD, MODEL, add_context, chosen, print_json

if TYPE_CHECKING:
    from labkit.experiments.offload_sweep import Verified
    from labkit.planning.planner import Plan
    from labkit.settings import Settings


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", nargs="?", help=MODEL)
    add("--ram", metavar="SIZE", help="memory the process may use (default: what is available here now)")
    add("--vram", metavar="SIZE", help="memory of a device, as in 10GiB")
    add("--gpu", metavar="NAME", help="a known device, as in rtx-3060-12gb; 'list' lists them")
    add(
        "--verify",
        action="store_true",
        help="load it, and with one layer more, on this machine's GPU or a loopback device",
    )
    add("--margin", metavar="SIZE", help="memory to leave free on the device (default 1GiB)")
    add("--load", dest="load_mode", metavar="MODE", help=LOAD)
    add_context(parser, "tokens of context, n_ctx (default 512)")


def run(args: argparse.Namespace) -> int:
    from labkit.engine import cpu_features
    from labkit.planning import planner, tuner
    from labkit.predict import hardware
    from labkit.settings import Settings
    from labkit.system.bandwidth import ram_bandwidth
    from labkit.system.machine import machine

    if args.gpu == "list":
        known = {name: hardware.get(name).title for name in hardware.names()}
        print_json(known) if args.json else print("\n".join(f"{name:26} {title}" for name, title in known.items()))
        return OK
    if args.model is None:
        raise ValueError("name a model, as in llama-2-13b:Q4_K_M.")
    for name in ("ram", "vram", "margin"):
        size = getattr(args, name)
        if size and size.isdecimal() and int(size) < 1 << 20 and int(size):
            raise ValueError(f"--{name} {size} would be {size} bytes: write a unit, as in {size}GiB.")
    settings = Settings.of(chosen(args))
    ram = args.ram if args.ram is not None else machine().available_bytes
    if ram is None:
        raise ValueError("this system does not say how much memory is available: give --ram.")
    found = planner.plan(
        args.model,
        ram=ram,
        vram=args.vram,
        device=hardware.get(args.gpu) if args.gpu else None,
        settings=settings,
        margin=args.margin or tuner.MARGIN_BYTES,
        host_bytes_per_s=ram_bandwidth(seconds=0.3).bytes_per_s if args.ram is None else None,
        cpu_features=cpu_features(),
    )
    checked = _verify(args.model, found, settings) if args.verify else None
    if args.json:
        print_json(found.to_dict() | ({} if checked is None else {"verified": _to_dict(checked)}))
    else:
        print("\n".join([str(found), *([] if checked is None else _lines(checked, found.n_gpu_layers))]))
    return OK if found.ok and (checked is None or checked.right) else NO


def _verify(model: str, found: Plan, settings: Settings) -> Verified:
    """The planned run, and one with a layer more, on a real GPU of this machine or else on a loopback device."""
    from labkit import engine
    from labkit.experiments.offload_sweep import verify
    from labkit.planning.tuner import Tuned
    from labkit.settings import LOOPBACK

    vram = found.assumptions["vram_bytes"]
    if not vram:
        raise ValueError("there is no device to verify: give --vram or --gpu.")
    real = [device.name for device in engine.devices() if device.kind in ("GPU", "IGPU")]
    return verify(
        model,
        Tuned(found.n_gpu_layers, found.n_cpu_moe, found.split, True, "", ()),
        vram=vram - (found.assumptions["device_margin_bytes"] or 0),
        device=real[0] if real else LOOPBACK,
        settings=settings,
    )


def _to_dict(checked: Verified) -> dict[str, Any]:
    """What was verified, for JSON."""
    runs = {"fits": checked.fits, "one_more": checked.one_more}
    outcomes = {name: run and {"outcome": run.outcome, "reason": run.reason} for name, run in runs.items()}
    return {"device": checked.device, "right": checked.right, **outcomes}


def _lines(checked: Verified, n_gpu_layers: int) -> list[str]:
    """What was verified, as lines of text."""
    runs = {n_gpu_layers: checked.fits, n_gpu_layers + 1: checked.one_more}
    return [
        f"{checked.device}, {n} layers: {run.outcome}{run.reason and f', {run.reason}'}"
        for n, run in runs.items()
        if run is not None
    ]
