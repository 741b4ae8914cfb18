"""An emulated Debian 12 with systemd and cgroup v2, for what a container or a version 1 machine cannot show.

`run` copies a folder into the machine, runs a shell command there, and returns what it printed. The command runs either
as an ordinary user with a login session, whose slice has a memory limit, or as root. It needs no virtualization
support: QEMU interprets every instruction, so the guest is slow and only Python's standard library is there.

The root file system is built once, with debootstrap, and kept in a cache folder; a run changes nothing in it. Building
needs root (for chroot) and Debian's packages `qemu-system-x86`, `debootstrap` and `e2fsprogs`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

SESSION_LIMIT_MIB = 700  # on user-1000.slice, an ancestor of everything the learner runs
_TOOLS = ("qemu-system-x86_64", "debootstrap", "mke2fs", "chroot")
_PACKAGES = "python3,systemd-sysv,dbus,dbus-user-session,libpam-systemd,linux-image-cloud-amd64"
_UNIT = """\
[Unit]
Description=labkit's check
After=systemd-user-sessions.service systemd-logind.service dbus.service mnt.mount
RequiresMountsFor=/mnt
SuccessAction=poweroff-force
FailureAction=poweroff-force
[Service]
Type=oneshot
TimeoutStartSec=infinity
{identity}
ExecStart=/bin/sh -c 'cp -r /mnt/work . && cd work && sh ./command; echo "exit $?"; sync'
StandardOutput=file:/dev/ttyS1
StandardError=file:/dev/ttyS1
"""
_AS_USER = "User=learner\nPAMName=login\nWorkingDirectory=/home/learner"
_AS_ROOT = "WorkingDirectory=/root"


class VMError(RuntimeError):
    """The machine could not be built or did not finish; the message holds the end of its log."""


@dataclass(frozen=True)
class Finished:
    """The command's exit status and everything it printed."""

    status: int
    output: str


def missing() -> str | None:
    """What this computer lacks to build and run the machine, or None."""
    absent = [
        tool for tool in _TOOLS if shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None
    ]
    if absent:
        return f"needs {', '.join(absent)} (apt-get install qemu-system-x86 debootstrap e2fsprogs)"
    if os.geteuid() != 0 and not (cache() / "root.img").exists():
        return "needs root to build the machine the first time"
    return None


def cache() -> Path:
    return Path(os.environ.get("LABKIT_VM_CACHE", Path.home() / ".cache/labkit/vm"))


def _call(command: list[str | Path], log: Path, *, timeout_s: float) -> None:
    with open(log, "ab") as stream:
        done = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, timeout=timeout_s, check=False)
    if done.returncode:
        raise VMError(f"{command[0]} failed with status {done.returncode}:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def build() -> Path:
    """Build the machine unless it is there; the folder with `root.img`, `vmlinuz` and `initrd.img`."""
    folder = cache()
    if (folder / "root.img").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "build.log"
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="tree-") as scratch:
        tree = Path(scratch)
        _call(["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", tree], log, timeout_s=1800)
        _call(["chroot", tree, "useradd", "--create-home", "--shell", "/bin/sh", "learner"], log, timeout_s=60)
        (tree / "etc/fstab").write_text("/dev/vda / ext4 rw 0 1\n/dev/vdb /mnt ext4 ro 0 0\n")
        units = tree / "etc/systemd/system"
        (units / "check-user.service").write_text(_UNIT.format(identity=_AS_USER))
        (units / "check-root.service").write_text(_UNIT.format(identity=_AS_ROOT))
        (units / "user-1000.slice.d").mkdir()
        (units / "user-1000.slice.d/limit.conf").write_text(f"[Slice]\nMemoryMax={SESSION_LIMIT_MIB}M\n")
        for name in ("vmlinuz", "initrd.img"):
            (found,) = (tree / "boot").glob(f"{name}-*")
            shutil.copyfile(found, folder / name)
        unfinished = folder / "root.part"
        _call(["mke2fs", "-q", "-F", "-t", "ext4", "-d", tree, unfinished, "2G"], log, timeout_s=600)
        unfinished.rename(folder / "root.img")
    return folder


def run(
    folder: Path, command: str, *, as_root: bool = False, memory_mib: int = 1024, timeout_s: float = 600
) -> Finished:
    """Copy `folder` into the machine and run a shell command in it.

    Args:
        folder: what to copy.
        command: a line for sh.
        as_root: run as root in a system service, instead of as a user in a login session.
        memory_mib: the machine's memory.
        timeout_s: give up after so many seconds.

    Raises:
        VMError: the machine could not be built, or stopped before the command ended.
    """
    base = build()
    with tempfile.TemporaryDirectory(prefix="labkit-vm-") as scratch:
        disk, image, out, console = (Path(scratch) / name for name in ("disk", "disk.img", "out", "console"))
        shutil.copytree(folder, disk / "work")
        (disk / "work").chmod(0o755)
        (disk / "work/command").write_text(command + "\n")
        _call(["mke2fs", "-q", "-F", "-t", "ext4", "-d", disk, image, "64M"], console, timeout_s=60)
        unit = "check-root.service" if as_root else "check-user.service"
        arguments = f"root=/dev/vda rw console=ttyS0 quiet systemd.show_status=0 systemd.wants={unit}"
        qemu: list[str | Path] = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"]
        qemu += ["-m", str(memory_mib), "-display", "none", "-no-reboot", "-monitor", "none", "-nic", "none"]
        qemu += ["-kernel", base / "vmlinuz", "-initrd", base / "initrd.img", "-append", arguments]
        for drive, options in ((base / "root.img", ",snapshot=on"), (image, ",readonly=on")):
            qemu += ["-drive", f"file={drive},format=raw,if=virtio{options}"]
        qemu += ["-serial", f"file:{console}", "-serial", f"file:{out}"]
        _call(qemu, console, timeout_s=timeout_s)
        text = out.read_text(errors="replace").replace("\r\n", "\n") if out.exists() else ""
        body, found, status = text.rpartition("exit ")
        if not found or not status.strip().isdigit():
            raise VMError(f"The machine stopped before the command ended:\n{text[-1000:]}\n{_tail(console)}")
        return Finished(int(status), body)
