"""The client of asyncio: many calls, cancellation, loops."""

from __future__ import annotations

import asyncio

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
        return len(own._pool._idle)

    assert [run(main()), run(main())] == [1, 1]


def test_a_connection_that_was_closed_is_replaced(daemon):
    async def main() -> None:
        async with daemon.async_client() as own:
            await own.acquire("wide")
            own._pool._idle[0][1].transport.abort()
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
