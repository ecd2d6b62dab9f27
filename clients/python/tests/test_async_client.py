"""The client of asyncio: many calls, cancellation, loops."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading

import pytest

import tollgate
from tollgate import PermitError, RateLimitExceeded

PATIENCE = 30


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 2 * PATIENCE))


def test_a_permit_is_granted_reported_and_counted(daemon, client, used):
    async def main() -> None:
        async with daemon.async_client() as own:
            async with await own.acquire("x") as permit:
                reported = await permit.report(status=200)
            assert reported.first and permit.is_settled
            assert (await own.capacity("x")).remaining == 4
            assert (await own.get_status("x"))["limits"][0]["used"] == 1
            released = await own.acquire("x")
            await released.release()
            with pytest.raises(PermitError):
                await released.report(status=200)
            with pytest.raises(tollgate.NotFound):
                await own.acquire("nobody")

    run(main())
    assert used(client, "x") == 1


def test_a_report_takes_as_much_of_a_body_as_the_server_reads(daemon, client):
    async def main() -> None:
        async with daemon.async_client() as own:
            for body in ("x" * 70_000, '"' * 70_000, "é" * 70_000, b"\xff" * 70_000):
                permit = await own.acquire("wide")
                assert (await permit.report(status=200, body=body)).first

    run(main())
    headers = {"x-long": "y" * 60_000}
    assert client.acquire("wide").report(status=200, headers=headers, body='"' * 70_000).first


def test_many_tasks_share_one_client(daemon, client, used):
    async def main() -> int:
        async with daemon.async_client() as own:
            async def one() -> bool:
                try:
                    async with await own.acquire("x", timeout=5) as permit:
                        await permit.report(status=200)
                    return True
                except RateLimitExceeded as denied:
                    assert str(denied.limit) == "5/1h" and denied.retry_in is not None
                    return False

            return sum(await asyncio.gather(*(one() for _ in range(100))))

    assert run(main()) == 5
    assert used(client, "x") == 5


def test_a_cancelled_wait_takes_nothing(daemon, client, used):
    """The only slot is held; a waiter is cancelled; the slot goes to the next one, not to it."""
    async def main() -> None:
        async with daemon.async_client() as own:
            held = await own.acquire("single")
            waiting = asyncio.ensure_future(own.acquire("single", timeout=3600))
            await until(own, lambda status: sum_of(status["queue"]) == 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await until(own, lambda status: sum_of(status["queue"]) == 0)
            await held.report(status=200)
            other = await own.acquire("single", timeout=PATIENCE)
            await other.release()
            assert (await own.get_status("single"))["permits"]["open"] == 0

    run(main())
    assert used(client, "single") == 1


@pytest.mark.parametrize("name", ["wide", "single"])
def test_cancelled_at_any_moment_no_permit_stays_open(name, daemon, client, used):
    """Tasks that are cancelled before, while and after their grant is sent. A cancellation is never
    lost either, as it is by `wait_for` up to Python 3.11."""
    dice = random.Random(14)

    async def main() -> int:
        granted = 0
        async with daemon.async_client() as own:
            for _ in range(40):
                tasks = [asyncio.ensure_future(own.acquire(name, timeout=PATIENCE)) for _ in range(5)]
                for task in tasks:
                    await asyncio.sleep(dice.random() * 0.003)
                    is_cancelled = task.cancel()
                    try:
                        await (await task).release()
                        granted += 1
                        assert not is_cancelled
                    except asyncio.CancelledError:
                        assert is_cancelled
            while (await own.get_status(name))["permits"]["open"]:
                await asyncio.sleep(0.02)
        return granted

    granted = run(main())
    assert used(client, name) == 0, granted


def sum_of(queue: dict) -> int:
    return int(queue["high"]) + int(queue["normal"]) + int(queue["low"])


async def until(own: tollgate.AsyncClient, holds) -> None:
    """Asks until it holds; the bound is the test's."""
    while not holds(await own.get_status("single")):
        await asyncio.sleep(0.02)


def test_a_cancelled_block_settles_its_permit(daemon, client, used):
    """Cancelled twice, the second time while the report is under way."""
    async def main() -> None:
        own = daemon.async_client()
        entered = asyncio.Event()

        async def block() -> None:
            async with await own.acquire("single"):
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(block())
        await entered.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await own.close()
        assert (await own.get_status("single"))["permits"]["open"] == 0
        await own.close()

    run(main())
    assert used(client, "single") == 1


def test_an_exception_settles_the_permit(daemon, client, used):
    async def main() -> None:
        async with daemon.async_client() as own:
            with pytest.raises(ValueError):
                async with await own.acquire("single"):
                    raise ValueError
            await (await own.acquire("single", timeout=PATIENCE)).release()

    run(main())
    assert used(client, "single") == 1


def test_a_client_works_in_one_loop_after_another(daemon):
    own = daemon.async_client()

    async def main() -> int:
        permit = await own.acquire("wide")
        await permit.report(status=200)
        return len(own._pool._state().idle)

    assert [run(main()), run(main())] == [1, 1]
    assert len(own._pool._states) == 1, "loops that are over are forgotten"


def test_threads_with_a_loop_each_share_one_client(daemon, client, used):
    """Untyped errors, in 5 of 60 calls: one loop waited for a connection of the other."""
    own = daemon.async_client()
    errors: list = []

    async def one() -> None:
        async with await own.acquire("wide", timeout=PATIENCE) as permit:
            await permit.report(status=200)

    async def main() -> None:
        for _ in range(3):
            done = await asyncio.gather(*(one() for _ in range(20)), return_exceptions=True)
            errors.extend(error for error in done if error is not None)
        await own.close()

    threads = [threading.Thread(target=lambda: run(main())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert errors == []
    assert used(client, "wide") == 4 * 3 * 20
    assert client.get_status("wide")["permits"]["open"] == 0


def test_a_forked_process_has_connections_of_its_own(daemon, client, used):
    """Also if the fork is within a loop with connections; those stay the parent's."""
    own = daemon.async_client()

    async def call() -> None:
        async with await own.acquire("wide", timeout=PATIENCE) as permit:
            await permit.report(status=200)

    async def main() -> None:
        await call()
        (kept,) = own._pool._state().idle
        pid = os.fork()
        if pid == 0:
            signal.alarm(PATIENCE)  # a child that blocks dies, and the test fails
            thread = threading.Thread(target=lambda: (run(call()), os._exit(0)))
            thread.start()
            thread.join()
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        await call()
        assert own._pool._state().idle == [kept]
        await own.close()

    run(main())
    assert used(client, "wide") == 3


def test_the_connections_of_a_parent_end_although_a_forked_process_lives(daemon):
    """The child's copies would keep the places of the daemon taken."""
    own = daemon.async_client()

    async def main() -> None:
        await own.acquire("wide")
        (_, writer), = own._pool._state().idle
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.alarm(PATIENCE)
            os.close(write_end)
            os.read(read_end, 1)
            os._exit(0)
        os.close(read_end)
        descriptor = writer.get_extra_info("socket").fileno()
        while os.readlink(f"/proc/{pid}/fd/{descriptor}") != os.devnull:
            await asyncio.sleep(0.01)
        os.close(write_end)
        os.waitpid(pid, 0)
        await own.close()

    run(main())


def test_a_connection_that_was_closed_is_replaced(daemon):
    async def main() -> None:
        async with daemon.async_client() as own:
            await own.acquire("wide")
            own._pool._state().idle[0][1].transport.abort()
            await asyncio.sleep(0)
            await own.acquire("wide")

    run(main())


def test_a_daemon_that_is_away_is_a_typed_error():
    async def main() -> None:
        with pytest.raises(tollgate.TollgateUnavailable) as away:
            await tollgate.AsyncClient("127.0.0.1:1").acquire("x")
        assert "tollgate serve" in str(away.value)

    run(main())


def test_metrics_and_alerts_of_the_daemon(daemon):
    async def main() -> None:
        async with daemon.async_client() as own:
            assert "x" in (await own.metrics())["entities"]
            assert await own.alerts() == []

    run(main())
