"""Starting the job's program: a session and an environment of its own, another user and no network where that is possible."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import resource
import shutil
import signal
import socket
import stat
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nested_rl.model_files import IMAGE_BIN

from . import tree

KEPT = (
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "UCX_HOME",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
)
"""Variables of the machine that a job gets too, for the image's libraries."""
MARK, CARRIED = "NESTED_RL_MACHINE", "NESTED_RL_MARK_OF_JOBS"
"""The variable by which a machine finds what belongs to it, and the one in which the runner carries it to the job."""

SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  looked at, never used
OPEN_FILES = 32_000
"""As many as prime-rl's image allows; a login over SSH has far fewer."""

NUMBERS = range(58_000, 60_000)
"""User ids for jobs on machines that have no user for them: no account's, and below what a container maps."""
_NEVER = {0, 65_534}
"""Root, and nobody: who the sandbox is where it cannot be more."""

_NEW_USER, _NEW_NETWORK, _NEW_HOSTNAME = 0x10000000, 0x40000000, 0x04000000
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1


@dataclass(frozen=True)
class Walls:
    """How a program is kept apart. `uid` None: it runs as we do. `network`: "own" (only its own loopback) or "shared"."""

    uid: int | None
    gid: int | None
    network: str
    notes: tuple[str, ...] = ()


def walls(user: str, *, isolate: bool, needs: Sequence[str] = ()) -> Walls:
    """The strongest there are here. `user` is a name, or a number that needs no name. What could not be had is said in `notes`.

    Root gives a job a number of its own where there is no such user, if everything in `needs` can be reached with it.
    """
    uid, gid, notes = None, None, []
    if user and os.getuid() == 0:
        uid, gid = _known(user)
        if uid is None:
            uid = gid = _free_number()
            closed = [path for path in needs if not reachable(os.path.realpath(path), uid)]
            notes.append(f"there is no user {user!r} here: the job runs as {uid}, a number of its own")
            if closed:
                uid = gid = None
                notes = [f"there is no user {user!r} here, and only root can go to {closed[0]}: the job runs as root"]
    elif user:
        notes.append(f"not root: the job runs as this user, not as {user!r}")
    network = "own" if isolate and _can_unshare() else "shared"
    if isolate and network == "shared":
        notes.append("no network namespaces here: the job could reach the network")
    return Walls(uid, gid, network, tuple(notes))


def _known(user: str) -> tuple[int | None, int | None]:
    """The ids of a user that a job may have."""
    uid = gid = int(user) if user.isdecimal() else 0
    with contextlib.suppress(KeyError):
        entry = pwd.getpwnam(user)
        uid, gid = entry.pw_uid, entry.pw_gid or entry.pw_uid
    return (None, None) if uid in _NEVER else (uid, gid)


def _free_number() -> int:
    """Another one for every runner, so that jobs which run side by side are strangers."""
    for step in range(len(NUMBERS)):
        number = NUMBERS[(os.getpid() + step) % len(NUMBERS)]
        try:
            pwd.getpwuid(number)
        except KeyError:
            return number
    raise OSError(f"every user id from {NUMBERS[0]} to {NUMBERS[-1]} is somebody's")


def environment(work: str, *, gpus: str, program: str) -> dict[str, str]:
    """A job's whole environment: nothing of ours but the PATH, the mark, and what `KEPT` names."""
    scratch = f"{work}/scratch"
    own = {
        "PATH": f"{Path(program).parent}:{os.environ.get('PATH', os.defpath)}",
        "HOME": scratch,
        "TMPDIR": scratch,
        "USER": "job",
        "LOGNAME": "job",
        "LANG": "C.UTF-8",
        "PYTHONPATH": f"{work}/env",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": gpus,
        "HF_HOME": f"{scratch}/huggingface",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "WANDB_MODE": "disabled",
        "DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # Without a network the host's own name and address lead nowhere.
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }
    marked = {MARK: os.environ[CARRIED]} if CARRIED in os.environ else {}
    return {**{name: os.environ[name] for name in KEPT if name in os.environ}, **marked, **own}


def unmarked() -> dict[str, str]:
    """This environment, with the mark put away."""
    env = dict(os.environ)
    if MARK in env:
        env[CARRIED] = env.pop(MARK)
    return env


def find(name: str) -> str | None:
    """Where a program is: on the PATH, or in prime-rl's image."""
    return shutil.which(name) or shutil.which(name, path=IMAGE_BIN)


def start(
    argv: Sequence[str], *, work: str, env: Mapping[str, str], console: str, walls: Walls
) -> subprocess.Popen[bytes]:
    """Start it in `work`. What it prints goes to the file `console`. Raises OSError."""
    with Path(console).open("ab") as output:
        try:
            return subprocess.Popen(
                list(argv),
                cwd=work,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: _enter(walls),  # noqa: PLW1509  this process has one thread
            )
        except subprocess.SubprocessError as error:
            raise OSError(f"{argv[0]}: the walls around it cannot be built ({error})") from None


def give(path: str, walls: Walls) -> None:
    """Make a folder, all of it, the job's own."""
    if walls.uid is None or walls.gid is None:
        return
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            os.lchown(Path(folder, name), walls.uid, walls.gid)
    os.lchown(path, walls.uid, walls.gid)


def strays(walls: Walls) -> list[Path]:
    """What a job with a user of its own has put where everybody may write."""
    found = []
    for folder in map(Path, SHARED_FOLDERS if walls.uid is not None else ()):
        with contextlib.suppress(OSError):
            found += [path for path in folder.iterdir() if path.lstat().st_uid == walls.uid]
    return found


def reachable(path: str, uid: int | None) -> bool:
    """Whether another user can go through every folder on the way to `path`."""
    folders = (Path(path), *Path(path).parents)
    return uid is None or all(folder.stat().st_mode & 0o001 for folder in folders)


def writable(roots: Sequence[str], walls: Walls) -> str:
    """What of these files and folders, or on the way to them, the job could write or replace; "" when nothing."""
    for root in map(os.path.realpath, roots):
        for above in Path(root).parents:
            told = above.stat()
            if not told.st_mode & stat.S_ISVTX and _open_to(told, walls):
                return str(above)
        alone = [] if Path(root).is_dir() else [(root, (), ())]
        for folder, folders, files in (*alone, *os.walk(root)):
            for path in (Path(folder), *(Path(folder, name) for name in (*folders, *files))):
                told = path.lstat()
                if not stat.S_ISLNK(told.st_mode) and _open_to(told, walls):
                    return str(path)
    return ""


def _open_to(told: os.stat_result, walls: Walls) -> bool:
    mine, ours = told.st_uid == walls.uid, told.st_gid == walls.gid and told.st_mode & 0o020
    return bool(mine or ours or told.st_mode & 0o002)


def _enter(walls: Walls) -> None:
    """In the new process, before its program."""
    if walls.network == "own":
        _leave_network()
    if walls.uid is not None and walls.gid is not None:
        os.setgroups([])
        os.setgid(walls.gid)
        os.setuid(walls.uid)
    tree.no_more_rights()
    tree.end_with_parent(signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, most) if most >= 0 else OPEN_FILES, most))
    with contextlib.suppress(OSError):  # out of memory, the job goes first, and the runner tells of it
        Path("/proc/self/oom_score_adj").write_text("500", "ascii")
    os.umask(0o022)


def _leave_network() -> None:
    """A network of our own with nothing but loopback, on a host called localhost: torchrun asks for the host's name."""
    uid, gid = os.getuid(), os.getgid()
    if tree.LIBC.unshare(_NEW_NETWORK | _NEW_HOSTNAME) != 0:
        if tree.LIBC.unshare(_NEW_USER | _NEW_NETWORK | _NEW_HOSTNAME) != 0:
            raise OSError("unshare")
        for name, line in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path("/proc/self", name).write_text(line, "ascii")
    socket.sethostname("localhost")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _GET_FLAGS, request))[1]
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))


def _can_unshare() -> bool:
    """Try it in a child."""
    pid = os.fork()
    if pid == 0:
        try:
            _leave_network()
        except BaseException:  # noqa: BLE001
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0
