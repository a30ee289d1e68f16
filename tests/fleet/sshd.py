"""Real sshd processes on loopback, each a host of its own: its port, its host key, its folder."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import asyncssh
from processes import free_port, tree

from nested_rl.compute.ssh_login import Host
from nested_rl.types import Need

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/sbin")

# SHLVL: bash takes its shell for one below another, and does not read what this computer's user has in ~/.bashrc.
CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
SetEnv SHLVL=1
AllowStreamLocalForwarding yes
MaxStartups 100
MaxSessions 100
"""


class Sshd:
    """One host. `start` it, `kill` it with all its sessions, `freeze` and `thaw` them."""

    def __init__(self, folder: Path, *, key: Path | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.key = key or folder / "login"
        if not self.key.exists():
            made = asyncssh.generate_private_key("ssh-ed25519")
            made.write_private_key(str(self.key))
            made.write_public_key(f"{self.key}.pub")
            self.key.chmod(0o600)
        host = asyncssh.generate_private_key("ssh-ed25519")
        host.write_private_key(str(folder / "host_key"))
        (folder / "host_key").chmod(0o600)
        self.host_key = host.export_public_key().decode().strip()
        shutil.copy(f"{self.key}.pub", folder / "authorized")
        self.port = free_port()
        (folder / "config").write_text(CONFIG.format(port=self.port, folder=folder))
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # noqa: ASYNC240
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(  # noqa: ASYNC220
                [SSHD, "-D", "-e", "-f", str(self.folder / "config")],
                stderr=log,
                start_new_session=True,
                env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
            )
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                await asyncio.sleep(0.01)
            else:
                writer.close()
                return

    def host(self, **more) -> Host:
        told = {
            "key": str(self.key),
            "host_key": self.host_key,
            "offer": Need(disk_gib=5),
            "python": sys.executable,
            "folder": str(self.folder / "base"),
        }
        return Host(address=f"{getpass.getuser()}@127.0.0.1:{self.port}", **{**told, **more})

    def tree(self) -> list[int]:
        """The listener and the sessions, not what runs apart from them."""
        return tree(self.process.pid) if self.process is not None else []

    def signal(self, number: int) -> None:
        for pid in self.tree():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def drop(self) -> None:
        """Every connection breaks; the listener stays."""
        for pid in self.tree()[1:]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def kill(self) -> None:
        """Connections and listener."""
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
            self.process.wait()
        self.process = None
