"""Libraries that other versions left behind."""

from __future__ import annotations

import asyncio

from toril import Queue
from toril.cli.main import run
from toril.client.connection import Connection
from toril.doctor import examine
from toril.doctor.libraries import remove_unused_libraries
from toril.protocol import scripts
from toril.protocol.scripts import Library


def another(mark: str) -> Library:
    """The library of another version."""
    ours = scripts.library()
    return ours.with_texts({"rooms/clock": f'{ours.rooms["clock"]}clock.MARK = "{mark}"\n'})


def names_on(server) -> set[str]:
    with server.client() as client:
        return {entry[entry.index("library_name") + 1] for entry in client.function_list()}


async def test_a_library_that_nobody_calls_is_told(start_server):
    server = start_server(tcp=True)
    left, in_use = another("left"), another("in use")
    with server.client() as client:
        client.function_load(left.source)
        client.function_load(in_use.source)
        other = server.client()
        other.client_setinfo("LIB-NAME", f"redis-py(toril_v0.0.1+{in_use.version})")
    async with Queue("q", connection=server.url) as queue:
        await queue.add("x")
        report = await examine(server.url, audit=False)

    (found,) = [one for one in report.findings if one.code == "D120"]
    other.close()
    assert left.name in found.problem
    assert in_use.name not in found.problem
    assert scripts.library().name not in found.problem


def test_fix_removes_what_nobody_calls(start_server, capsys):
    server = start_server(tcp=True)
    left = another("left")
    with server.client() as client:
        client.function_load(left.source)
        client.function_load("#!lua name=theirs\nredis.register_function('f', function() end)")

    run(["doctor", "--fix", "--no-audit", "--url", server.url])

    assert f"removed the library {left.name}" in capsys.readouterr().out
    assert names_on(server) == {"theirs"}


async def test_two_people_may_remove_them_at_once(start_server):
    server = start_server(tcp=True)
    left = [another(str(n)) for n in range(4)]
    with server.client() as client:
        for library in left:
            client.function_load(library.source)
    connections = [Connection(server.url) for _ in range(3)]

    removed = await asyncio.gather(*map(remove_unused_libraries, connections))

    assert sorted(name for names in removed for name in names) == sorted(
        library.name for library in left
    )
    assert names_on(server) == set()
    for connection in connections:
        await connection.close()


async def test_a_program_whose_library_was_removed_loads_it_again(start_server):
    server = start_server(tcp=True)
    async with Queue("q", connection=server.url) as queue:
        await queue.add("x")
        with server.client() as client:
            client.function_delete(scripts.library().name)
        await queue.add("y")

        assert len(await queue.get_waiting()) == 2


async def test_a_connected_program_says_which_library_it_calls(start_server):
    server = start_server(tcp=True)
    async with Queue("q", connection=server.url) as queue:
        await queue.add("x")
        with server.client() as client:
            listed = client.execute_command("CLIENT LIST")
            names = str(await asyncio.to_thread(lambda: listed))

    assert f"+{scripts.library().version}" in names
