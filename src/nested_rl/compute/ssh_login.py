"""Logging in to a machine over SSH, and having its host program (`host.py`) run there."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shlex
import socket
import zipfile
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attrs import field, frozen

from nested_rl import process
from nested_rl.compute.host import TAKEN
from nested_rl.errors import MissingExtra, SettingsError
from nested_rl.types import Need

if TYPE_CHECKING:
    import asyncssh

AGENT: Final = (
    "errors.py",
    "clock.py",
    "waiting.py",
    "compute/orphans.py",
    "compute/rooted.py",
    "compute/child.py",
    "compute/box.py",
    "compute/host.py",
)
"""Modules of this package that a machine gets; they need the standard library only."""


class WrongHostKey(SettingsError):
    """Another machine answers at this address: nothing was sent to it."""


@frozen(kw_only=True)
class Host:
    """A machine that one can log in to.

    `address` is `[user@]host[:port]`; `key` the path of a private key (None: the agent's and the usual ones); `host_key` the machine's
    public key as one line of `known_hosts` without the name, such as "ssh-ed25519 AAAA…" (None: looked up in `known_hosts`).
    `python` is Python 3.11 or newer there, and what `python` means on the machine. `offer` is what the machine has. `env` is added
    to what every program there gets.
    """

    address: str
    key: str | None = None
    host_key: str | None = None
    python: str = "python3"
    folder: str = "~/.nested_rl"
    offer: Need = field(default=Need(disk_gib=10))
    usd_per_hour: float = 0.0
    env: Mapping[str, str] = field(factory=dict)

    @property
    def parts(self) -> tuple[str | None, str, int]:
        """User, host and port.

        >>> Host(address="ann@gpu.lab:2222").parts
        ('ann', 'gpu.lab', 2222)
        """
        user, at, place = self.address.rpartition("@")
        name, colon, port = place.rpartition(":")
        if colon and not port.isdigit():
            raise SettingsError(f"host {self.address!r}: an address is [user@]host[:port]")
        return (user if at else None), (name if colon else place), int(port) if colon else 22


BOOT: Final = """
import hashlib, io, os, sys, zipfile
if sys.version_info < (3, 11):
    sys.exit(f"Python 3.11 or newer is needed on a machine, this is {sys.version.split()[0]}: give another one as Host(python=...)")
data = sys.stdin.buffer.read()
base = os.path.realpath(os.path.expanduser(sys.argv[1]))
print("\\nnested-rl is at", base, flush=True)
agent = os.path.join(base, "agent", hashlib.sha256(data).hexdigest()[:16])
try:
    if not os.path.isdir(agent):
        os.makedirs(os.path.dirname(agent), mode=0o700, exist_ok=True)
        draft = f"{agent}.{os.getpid()}"
        zipfile.ZipFile(io.BytesIO(data)).extractall(draft)
        try:
            os.rename(draft, agent)
        except OSError:  # another was faster
            pass
    sys.path.insert(0, agent)
    sys.argv[1] = base
    from nested_rl.compute.host import main
    main()
except OSError as error:
    sys.exit(f"the folder {base} cannot be used there ({error}): give another one as Host(folder=...)")
"""
"""What Python on a machine is given: it unpacks the host program from its standard input, unless it is there, and starts it."""


SAID: Final = "nested-rl is at "
"""How the line begins that tells the folder: a shell may have greeted before."""


def agent(modules: Sequence[str] = AGENT) -> bytes:
    """The host program as a zip archive, the same bytes for the same code."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        package = resources.files("nested_rl")
        texts = {name: package.joinpath(name).read_text(encoding="utf-8") for name in modules}
        for name, text in {"__init__.py": "", "compute/__init__.py": "", **texts}.items():
            archive.writestr(zipfile.ZipInfo(f"nested_rl/{name}"), text)
    return buffer.getvalue()


def owner(part: str = "") -> str:
    """How this controller, or a part of it, is told to others who want the same machine."""
    return f"{socket.gethostname()} {process.identity()} {part}".strip()


async def login(
    host: Host, *, known_hosts: Path | None, keepalive_s: float, timeout_s: float
) -> asyncssh.SSHClientConnection:
    """An SSH connection, or OSError, or SettingsError for what no second try will mend: a wrong key on either side."""
    ssh = library()
    user, name, port = host.parts
    options: dict[str, Any] = {"username": user} if user else {}
    if host.key is not None:
        options |= {"client_keys": _keys(host), "agent_path": None}
    if host.host_key is not None:
        options["known_hosts"] = ([ssh.import_public_key(host.host_key)], [], [])
    elif known_hosts is not None:
        options["known_hosts"] = str(known_hosts) if known_hosts.is_file() else ([], [], [])  # noqa: ASYNC240
    try:
        connection: asyncssh.SSHClientConnection = await ssh.connect(
            name,
            port,
            config=None,
            connect_timeout=timeout_s,
            login_timeout=timeout_s,
            keepalive_interval=keepalive_s,
            keepalive_count_max=3,
            **options,
        )
    except ssh.HostKeyNotVerifiable as error:
        raise WrongHostKey(_unproven(host, known_hosts, error)) from error
    except ssh.PermissionDenied as error:
        raise SettingsError(f"{host.address}: the login was refused ({error})") from error
    except ssh.Error as error:
        raise ConnectionError(str(error)) from error
    return connection


def _unproven(host: Host, known_hosts: Path | None, error: Exception) -> str:
    """Why nothing was sent: another key is pinned, or none is, and how to pin one."""
    _, name, port = host.parts
    book = known_hosts or Path("~/.ssh/known_hosts").expanduser()
    written = name if port == 22 else f"[{name}]:{port}"
    pinned: Any = [host.host_key] if host.host_key is not None else []
    if not pinned and book.is_file():
        pinned = library().match_known_hosts(str(book), name, "", port)[0]
    if pinned:
        return f"{host.address}: its host key is not the pinned one ({error}); nothing was sent to it"
    return (
        f"{host.address}: this host is unknown ({book} has no key of {written}), and nothing was sent to it. "
        f"Pin its key: `ssh-keyscan -p {port} {name} >> {book}`, compare it with what the host's owner says, "
        "or give it as Host(host_key='ssh-ed25519 AAAA…')"
    )


def _keys(host: Host) -> Any:
    """Its private key, read here: what is wrong with it is no fault of the machine."""
    assert host.key is not None
    try:
        return library().load_keypairs([os.path.expanduser(host.key)])  # noqa: PTH111  text only
    except (OSError, ValueError) as error:
        raise SettingsError(f"{host.address}: the key {host.key} cannot be used ({error})") from error


async def take(connection: asyncssh.SSHClientConnection, host: Host, *, owner: str, lease_s: float) -> str:
    """Upload the host program unless it is there, start it, and return its folder.

    Raises SettingsError when another controller has the machine or its Python will not do.
    """
    code = f"import sys; sys.argv[1:] = {[host.folder, owner, str(lease_s)]!r}; exec({BOOT!r})"
    command = f"exec {shlex.quote(host.python)} -I -c {shlex.quote(code)}"
    async with connection.create_process(command, encoding=None) as started:
        with contextlib.suppress(BrokenPipeError):  # it has ended already: its status tells why
            started.stdin.write(agent())
            started.stdin.write_eof()
        done = await started.wait(check=False)
    out, err = (_text(done.stdout).strip(), _text(done.stderr).strip())
    base, _, other = out.rpartition(SAID)[2].partition("\n")
    if done.exit_status == TAKEN:
        if other != owner:
            _refuse(host, other, lease_s=lease_s)
        await _end(connection, base)
        return await take(connection, host, owner=owner, lease_s=lease_s)
    if done.exit_status != 0:
        raise SettingsError(f"{host.address}: {err or out or f'{host.python} ended with {done.exit_status}'}")
    if SAID not in out:
        raise SettingsError(
            f"{host.address}: {host.python!r} is no Python 3.11 or newer there: give one as Host(python=…)"
        )
    return base


def _text(data: bytes | str | None) -> str:
    return data.decode(errors="replace") if isinstance(data, bytes) else data or ""


def _refuse(host: Host, other: str, *, lease_s: float) -> None:
    """Another controller has the machine: refused, unless it was one of this computer and is dead."""
    where, _, rest = other.partition(" ")
    if where != socket.gethostname() or process.alive(rest.partition(" ")[0]):
        raise SettingsError(
            f"{host.address} is held by another controller ({other or 'of unknown name'}); it is free when that one ends, "
            f"or {lease_s:g} s after it was killed"
        )


async def _end(connection: asyncssh.SSHClientConnection, base: str) -> None:
    """End the host program that is there, and what it runs. One that has just begun has no socket yet."""
    for pause_s in (0.1, 0.3, 1.0, 3.0):
        try:
            reader, writer = await connection.open_unix_connection(f"{base}/socket", encoding=None)
        except library().ChannelOpenError:
            await asyncio.sleep(pause_s)
        else:
            writer.write(b'{"op": "end", "id": 1, "size": 0}\n')
            await reader.read()  # to its end
            return


async def runs(connection: asyncssh.SSHClientConnection, base: str) -> bool:
    """Whether the host program that was started earlier is still there."""
    done = await connection.run(f"test -S {shlex.quote(base)}/socket", check=False)
    status: int | None = done.exit_status
    return status == 0


def library() -> Any:
    """The SSH library, or the name of the extra that brings it."""
    try:
        import asyncssh
    except ImportError:
        raise MissingExtra("SSHCompute", "ssh") from None
    return asyncssh
