"""``labkit``: the measuring and the arithmetic, without the notebooks."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from datetime import date
from typing import Any

from labkit.units import fmt_bytes, fmt_ms

OK, NO, WRONG = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0 for done, 1 when the answer is no, 2 for wrong usage or bad input."""
    parser = _parser()
    args = parser.parse_args(argv)
    args.words = ["labkit", *(sys.argv[1:] if argv is None else argv)]
    try:
        status: int = args.run(args)
        return status
    except KeyboardInterrupt:
        print("labkit: stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return OK  # the reader has seen enough
    except (ValueError, OSError, RuntimeError, ModuleNotFoundError) as error:
        if args.debug:
            raise
        print(f"labkit: {error}", file=sys.stderr)
        return WRONG


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    data = argparse.ArgumentParser(add_help=False)
    data.add_argument("--json", action="store_true", help="print the result as JSON")
    parser = argparse.ArgumentParser(
        prog="labkit",
        description="Predict, then measure on this machine, how llama.cpp runs a model.",
        epilog="MODEL is a .gguf file, smollm2 (bundled), or SHAPE:QUANT for a forged one, as in llama-2-7b:Q4_K_M.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, run: Any, text: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text, parents=[common, *parents])
        command.set_defaults(run=run)
        return command

    add("doctor", _doctor, "Say what works on this computer and what to do about the rest.", data)

    start = add("start", _start, "Open JupyterLab on a lab.")
    start.add_argument("lab", nargs="?", default="00", help="which lab, as in 01 (default 00)")
    start.add_argument("--no-browser", action="store_true", help="print the address instead of opening it")
    start.add_argument("--port", type=int, help="port on 127.0.0.1 (default: the first free one from 8888)")

    run = add("run", _run, "Execute labs on this machine without a browser, a progress line each.", data)
    run.add_argument("labs", nargs="*", metavar="LAB", help="which labs, as in 00 01 (default: all)")
    run.add_argument("--save", action="store_true", help="write the outputs back into the notebooks")

    inspect = add("inspect", _inspect, "Read a model's header: shape, tensor types, sizes.", data)
    inspect.add_argument("model", metavar="MODEL")
    _context(inspect, "also predict the KV cache and compute buffer for N tokens")
    inspect.add_argument(
        "--quant", metavar="QUANT", help="also predict each tensor's type and the size after quantizing, as in Q4_K_M"
    )

    forge = add("forge", _forge, "Write a model of a published shape without its weights.", data)
    forge.add_argument("shape", metavar="SHAPE", nargs="?", help="as in llama-2-7b; none lists them")
    forge.add_argument("quant", metavar="QUANT", nargs="?", help="as in Q4_K_M")
    forge.add_argument("--fill", action="store_true", help="write real bytes instead of a hole, for cold reads")
    forge.add_argument("--out", metavar="FILE", help="where to (default: labkit's cache)")

    measure = add(
        "measure", _measure, "Load a model in a child process, decode, and compare with the prediction.", data
    )
    measure.add_argument("model", metavar="MODEL")
    measure.add_argument("--load", dest="load_mode", metavar="MODE", help="auto, none, mmap, mlock, mmap+mlock or dio")
    measure.add_argument(
        "--no-repack", dest="repack", action="store_false", default=None, help="leave weights as they are"
    )
    _context(measure, "n_ctx (default 512)")
    measure.add_argument("--ngl", dest="n_gpu_layers", type=int, metavar="N", help="n_gpu_layers (default 0)")
    measure.add_argument(
        "--device", dest="devices", action="append", metavar="NAME", help="loopback, or a device that doctor lists"
    )
    measure.add_argument("--vram", metavar="SIZE", help="memory of the loopback device, as in 2GiB (default: no limit)")
    measure.add_argument(
        "--threads", dest="n_threads", type=int, metavar="N", help="n_threads (default: all usable cores)"
    )
    measure.add_argument("--cap", metavar="SIZE", help="memory limit of the child, as in 600MiB")
    measure.add_argument("--tokens", type=int, default=8, metavar="N", help="tokens to decode (default 8)")
    measure.add_argument("--prompt", metavar="TEXT", help="answer this text instead of decoding made-up ids")
    measure.add_argument(
        "--hold", dest="hold_s", type=float, default=0.0, metavar="S", help="stay resident for S seconds"
    )
    measure.add_argument(
        "--timeout", dest="timeout_s", type=float, default=300.0, metavar="S", help="give up after S seconds"
    )
    measure.add_argument("--record", metavar="FILE", help="also save the run, labelled with machine, date and command")

    plan = add("plan", _plan, "Say whether a model fits here or on another machine, and with which flags.", data)
    plan.add_argument("model", metavar="MODEL", nargs="?")
    plan.add_argument("--ram", metavar="SIZE", help="memory the process may use (default: what is available here now)")
    plan.add_argument("--vram", metavar="SIZE", help="memory of a device, as in 10GiB")
    plan.add_argument("--gpu", metavar="NAME", help="a known device, as in rtx-3060-12gb; 'list' lists them")
    plan.add_argument(
        "--verify",
        action="store_true",
        help="load it, and with one layer more, on this machine's GPU or a loopback device",
    )
    plan.add_argument("--margin", metavar="SIZE", help="to leave free on the device (default 1GiB)")
    plan.add_argument("--load", dest="load_mode", metavar="MODE", help="auto, none, mmap, mlock, mmap+mlock or dio")
    _context(plan, "n_ctx (default 512)")

    claims = add(
        "claims", _claims, "List claims from articles and what became of them; settle some on this machine.", data
    )
    claims.add_argument("ids", nargs="*", metavar="ID", help="claims to settle now, as in C001; none lists all")
    claims.add_argument("--topic", help="only this topic")
    return parser


def _context(parser: argparse.ArgumentParser, ctx_help: str) -> None:
    parser.add_argument("--ctx", dest="n_ctx", type=int, metavar="N", help=ctx_help)
    parser.add_argument("--ubatch", dest="n_ubatch", type=int, metavar="N", help="n_ubatch (default 512)")
    parser.add_argument("--kv", metavar="TYPE[/TYPE]", help="type_k and type_v, as in q8_0 or q8_0/q4_0 (default f16)")
    parser.add_argument("--flash-attn", dest="flash_attn", metavar="MODE", help="auto, on or off (default auto)")
    parser.add_argument("--parallel", dest="n_seq_max", type=int, metavar="N", help="n_seq_max (default 1)")
    parser.add_argument(
        "--kv-unified", dest="kv_unified", action="store_true", default=None, help="one cache for all sequences"
    )
    parser.add_argument(
        "--swa-full", dest="swa_full", action="store_true", default=None, help="sliding windows keep every cell"
    )


def _cache_types(text: str | None) -> dict[str, str]:
    if text is None:
        return {}
    type_k, _, type_v = text.partition("/")
    return {"type_k": type_k, "type_v": type_v or type_k}


def _print_json(values: Any) -> None:
    print(json.dumps(values, indent=2))


def _doctor(args: argparse.Namespace) -> int:
    from labkit.course import readiness

    found = readiness.examine()
    if args.json:
        _print_json(found.to_dict())
    else:
        print(found)
    return OK if found.ok else NO


def _start(args: argparse.Namespace) -> int:
    from labkit import workspace

    return workspace.start(args.lab, browser=not args.no_browser, port=args.port)


def _run(args: argparse.Namespace) -> int:
    from labkit import notebooks

    return notebooks.run(args.labs or None, save=args.save, json=args.json)


def _inspect(args: argparse.Namespace) -> int:
    from labkit.inspection import inspect
    from labkit.settings import Settings

    chosen = {name: value for name in _CONTEXT if (value := getattr(args, name)) is not None} | _cache_types(args.kv)
    found = inspect(args.model, settings=Settings.of(chosen) if chosen else None, quant=args.quant)
    if args.json:
        _print_json(found.to_dict())
    else:
        print(found)
    return OK


def _forge(args: argparse.Namespace) -> int:
    from labkit.models import shapes
    from labkit.models.forge import forge
    from labkit.progress import bar

    if args.shape is None:
        known = {name: shapes.get(name).title for name in shapes.names()}
        if args.json:
            _print_json({"shapes": known, "quants": list(shapes.QUANTS)})
        else:
            print("\n".join(f"{name:16} {title}" for name, title in known.items()))
            print(f"mixtures: {', '.join(shapes.QUANTS)}")
        return OK
    if args.quant is None:
        raise ValueError(f"name a mixture too: one of {', '.join(shapes.QUANTS)}.")
    with bar(f"forging {args.shape}") as report:
        made = forge(args.shape, args.quant, path=args.out, fill=args.fill, progress=report)
    if args.json:
        sizes = {"file_bytes": made.file_bytes, "disk_bytes": made.disk_bytes, "tensor_bytes": made.header.tensor_bytes}
        _print_json({"path": str(made.path), **sizes, "filled": args.fill, "reused": made.reused})
    else:
        print(f"{made.path}: {fmt_bytes(made.file_bytes)}, {fmt_bytes(made.disk_bytes)} on disk")
        print("It has the shape and types of the named model and no knowledge: the text it writes means nothing.")
    return OK


_CONTEXT = ("n_ctx", "n_ubatch", "flash_attn", "n_seq_max", "kv_unified", "swa_full")
_SETTINGS = ("load_mode", "repack", *_CONTEXT, "n_gpu_layers", "n_threads")


def _measure(args: argparse.Namespace) -> int:
    from labkit import gguf, predict
    from labkit.experiments.measure import Interrupted, measure
    from labkit.experiments.recordings import labelled, save
    from labkit.models import lookup
    from labkit.settings import Settings
    from labkit.system.bandwidth import ram_bandwidth
    from labkit.system.machine import usable_cores

    chosen = {name: getattr(args, name) for name in _SETTINGS if getattr(args, name) is not None}
    chosen |= _cache_types(args.kv)
    if args.devices:
        chosen["devices"] = tuple(args.devices)
    predict.check(gguf.read_header(lookup.find(args.model).path), Settings.of(chosen))
    status = None
    threads = Settings.of(chosen).n_threads or usable_cores()  # bad settings are refused before anything is measured
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
            **chosen,
        )
    except Interrupted as stopped:
        run, status = stopped.run, 130
    if args.record:
        save([labelled(run, date=date.today().isoformat(), command=shlex.join(args.words))], args.record)
    if args.json:
        print(run.to_json())
    else:
        _print_run(run)
    return status if status is not None else OK if run.ok else NO


def _print_run(run: Any) -> None:
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


def _plan(args: argparse.Namespace) -> int:
    from labkit.engine import cpu_features
    from labkit.planning import planner, tuner
    from labkit.predict import hardware
    from labkit.settings import Settings
    from labkit.system.bandwidth import ram_bandwidth
    from labkit.system.machine import machine

    if args.gpu == "list":
        known = {name: hardware.get(name).title for name in hardware.names()}
        _print_json(known) if args.json else print("\n".join(f"{name:26} {title}" for name, title in known.items()))
        return OK
    if args.model is None:
        raise ValueError("name a model, as in llama-2-13b:Q4_K_M.")
    for name in ("ram", "vram", "margin"):
        size = getattr(args, name)
        if size and size.isdecimal() and int(size) < 1 << 20 and int(size):
            raise ValueError(f"--{name} {size} would be {size} bytes: write a unit, as in {size}GiB.")
    chosen = {name: value for name in ("load_mode", *_CONTEXT) if (value := getattr(args, name)) is not None}
    settings = Settings.of(chosen | _cache_types(args.kv))
    here = machine()
    ram = args.ram if args.ram is not None else here.available_bytes
    if ram is None:
        raise ValueError("this system does not say how much memory is available: give --ram.")
    device = hardware.get(args.gpu) if args.gpu else None
    bandwidth = ram_bandwidth(seconds=0.3).bytes_per_s if args.ram is None else None
    found = planner.plan(
        args.model,
        ram=ram,
        vram=args.vram,
        device=device,
        settings=settings,
        margin=args.margin or tuner.MARGIN_BYTES,
        host_bytes_per_s=bandwidth,
        cpu_features=cpu_features(),
    )
    values: dict[str, Any] = found.to_dict()
    lines = [str(found)]
    verified = True
    if args.verify:
        checked = _verify(args, found, settings)
        verified = checked.right
        runs = {"fits": checked.fits, "one_more": checked.one_more}
        outcomes = {name: run and {"outcome": run.outcome, "reason": run.reason} for name, run in runs.items()}
        values["verified"] = {"device": checked.device, "right": checked.right, **outcomes}
        for name, run in runs.items():
            if run is not None:
                n = found.n_gpu_layers + (name == "one_more")
                lines.append(f"{checked.device}, {n} layers: {run.outcome}{run.reason and f', {run.reason}'}")
    if args.json:
        _print_json(values)
    else:
        print("\n".join(lines))
    return OK if found.ok and verified else NO


def _verify(args: argparse.Namespace, found: Any, settings: Any) -> Any:
    """The plan on a real GPU of this machine, or on a loopback device of the planned size."""
    from labkit import engine
    from labkit.experiments.offload_sweep import verify
    from labkit.planning.tuner import Tuned
    from labkit.settings import LOOPBACK

    room = found.assumptions["vram_bytes"]
    if not room:
        raise ValueError("there is no device to verify: give --vram or --gpu.")
    real = [device.name for device in engine.devices() if device.kind in ("GPU", "IGPU")]
    return verify(
        args.model,
        Tuned(found.n_gpu_layers, found.n_cpu_moe, found.split, True, "", ()),
        vram=room - (found.assumptions["device_margin_bytes"] or 0),
        device=real[0] if real else LOOPBACK,
        settings=settings,
    )


def _claims(args: argparse.Namespace) -> int:
    from labkit.course import claims

    status: int = claims.command(args.ids, topic=args.topic, as_json=args.json)
    return status


if __name__ == "__main__":
    sys.exit(main())
