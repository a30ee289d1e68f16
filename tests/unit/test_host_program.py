"""The host program of remote machines, here on a socket of this computer: each request, asked once and asked again."""

import asyncio
import hashlib
import json
import os
import sys

import pytest

from nested_rl.compute import host as program
from nested_rl.compute.host import Host, answer, live, main

DATA = b"x" * 5000
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
async def host(tmp_path):
    host = Host(tmp_path, lease_s=60.0)
    yield host
    await host.close()


async def ask(host, op, data=b"", **fields):
    return await answer(host, {"op": op, **fields}, data)


async def test_a_command_is_run_once_however_often_it_is_asked_for(host, tmp_path):
    argv = ["sh", "-c", f'echo run >> "{tmp_path}/runs"; echo out; echo err >&2; exit 3']
    for _ in range(2):
        told, body = await ask(host, "run", name="a", argv=argv, env={}, timeout_s=None)
        assert (told["status"], body[: told["out"]], body[told["out"] :]) == (3, b"out\n", b"err\n")
    assert (tmp_path / "runs").read_text() == "run\n"
    await ask(host, "forget", name="a")
    await ask(host, "forget", name="a")
    told, _ = await ask(host, "run", name="b", argv=["sleep", "30"], env={}, timeout_s=0.05)
    assert told["error"] == "TimeoutError"


async def test_lines_are_numbered_and_arrive_once(host):
    argv = ["sh", "-c", 'while read -r line; do echo "got $line"; done']
    for _ in range(2):
        assert (await ask(host, "start", name="p", argv=argv, env={}))[0] == {"name": "p"}
    for _ in range(2):
        await ask(host, "write", b"1\n", name="p", number=1)
    for _ in range(2):
        assert (await ask(host, "readline", name="p", number=1))[1] == b"got 1\n"
    await ask(host, "write", b"2\n", name="p", number=2)
    assert (await ask(host, "readline", name="p", number=2))[1] == b"got 2\n"
    assert (await ask(host, "kill", name="p"))[0]["status"] != 0
    assert (await ask(host, "wait", name="p"))[0]["status"] != 0
    for _ in range(2):
        told, _ = await ask(host, "write", b"3\n", name="p", number=3)
        assert told["error"] == "BrokenPipeError"
    assert (await ask(host, "readline", name="gone", number=1))[0]["error"] == "KeyError"


async def test_a_resident_outlives_a_lease_and_not_a_recycling(host):
    argv = ["sh", "-c", 'while read -r line; do echo "$line"; done']
    first, _ = await ask(host, "resident", key="echo", argv=argv, env={})
    await ask(host, "write", b"a\n", name=first["name"], number=1)
    await ask(host, "readline", name=first["name"], number=1)
    await ask(host, "start", name="other", argv=["sleep", "30"], env={})
    assert (await ask(host, "end_lease"))[0] == {"good": True}
    again, _ = await ask(host, "resident", key="echo", argv=argv, env={})
    assert again == {"name": first["name"], "written": 1, "read": 1}
    assert (await ask(host, "wait", name="other"))[0]["error"] == "KeyError"
    await ask(host, "put", DATA, path="file", sha256=SHA, keep=False)
    await ask(host, "recycle")
    fresh, _ = await ask(host, "resident", key="echo", argv=argv, env={})
    assert fresh["name"] != first["name"]
    assert (await ask(host, "get", path="file"))[0]["error"] == "FileNotFoundError"


async def test_files_are_kept_by_their_digest_and_checked(host):
    assert (await ask(host, "has", path="a", sha256=SHA))[0] == {"has": False}
    told, _ = await ask(host, "put", b"other", path="a", sha256=SHA, keep=True)
    assert (told["error"], told["message"]) == ("ValueError", "the bytes that arrived are not those that were sent")
    await ask(host, "put", DATA, path="a", sha256=SHA, keep=True)
    assert (await ask(host, "has", path="b/c", sha256=SHA))[0] == {"has": True}
    assert await ask(host, "get", path="b/c") == ({"sha256": SHA}, DATA)
    (host.store / SHA).write_bytes(b"meddled with")
    assert (await ask(host, "has", path="d", sha256=SHA))[0] == {"has": False}
    assert (await ask(host, "has", path="d", sha256="../secret"))[0]["error"] == "ValueError"


async def test_what_was_not_asked_for_the_longest_goes_first(host, monkeypatch):
    monkeypatch.setattr(program, "KEPT_BYTES", 12_000)
    sent = [bytes([n]) * 5000 for n in range(3)]
    names = [hashlib.sha256(data).hexdigest() for data in sent]
    for number, (data, sha256) in enumerate(zip(sent, names, strict=True)):
        await ask(host, "put", data, path="a", sha256=sha256, keep=True)
        os.utime(host.store / sha256, (number, number))
        if number == 1:
            assert (await ask(host, "has", path="b", sha256=names[0]))[0] == {"has": True}
    assert {each.name for each in host.store.iterdir()} == {names[0], names[2]}


async def test_what_a_killed_one_was_still_writing_is_removed(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / f"{SHA}.0a1b").write_bytes(b"half")
    (tmp_path / "store" / SHA).write_bytes(DATA)
    host = Host(tmp_path, lease_s=60.0)
    assert [each.name for each in host.store.iterdir()] == [SHA]
    await host.close()


async def test_only_the_requests_there_are(host):
    for op in ("close", "_forget_runs", "store", "__init__", None):
        assert "unknown request" in (await ask(host, op))[0]["message"]


async def test_requests_share_a_connection_and_a_broken_one_ends_none_of_them(tmp_path):
    ready = asyncio.Event()
    living = asyncio.ensure_future(live(tmp_path, 60.0, ready.set))
    await ready.wait()

    async def told(reader):
        line = json.loads(await reader.readline())
        return line, await reader.readexactly(line["size"])

    reader, writer = await asyncio.open_unix_connection(tmp_path / "socket")
    slow = {"op": "run", "name": "slow", "argv": ["sh", "-c", "sleep 0.2; echo slow"], "env": {}, "timeout_s": None}
    writer.write(json.dumps({**slow, "id": 1, "size": 0}).encode() + b"\n")
    writer.write(json.dumps({"op": "hello", "id": 2, "size": 0}).encode() + b"\n")
    line, _ = await told(reader)
    assert (line["id"], line["root"]) == (2, str(tmp_path / "machine"))
    writer.close()
    reader, writer = await asyncio.open_unix_connection(tmp_path / "socket")
    writer.write(json.dumps({**slow, "id": 3, "size": 0}).encode() + b"\n")
    line, body = await told(reader)
    assert (line["id"], line["status"], body) == (3, 0, b"slow\n")
    writer.write(b"no json\n")
    assert await reader.read() == b""
    writer.close()
    _, writer = await asyncio.open_unix_connection(tmp_path / "socket")
    writer.write(json.dumps({"op": "end", "id": 4, "size": 0}).encode() + b"\n")
    await asyncio.wait_for(living, 30)
    writer.close()
    assert not (tmp_path / "socket").exists()


async def test_without_requests_it_ends_by_its_lease(tmp_path):
    await asyncio.wait_for(live(tmp_path, 0.2, lambda: None), 30)
    assert not (tmp_path / "socket").exists()


def test_a_folder_whose_path_is_too_long_for_a_socket_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    base = tmp_path / ("x" * 100)
    monkeypatch.setattr(sys, "argv", ["host", str(base), "me", "60"])
    with pytest.raises(SystemExit, match="give a shorter folder"):
        main()
    assert not base.exists()
