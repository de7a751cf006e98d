"""A task that waits for a thread is woken once, in its own context, or by its cancellation."""

import asyncio
import threading
from contextvars import ContextVar

import pytest

from kassette_nb.arrival import Arrival

PLACE: ContextVar[str] = ContextVar("PLACE", default="nowhere")


@pytest.mark.parametrize("early", [False, True])
def test_the_task_goes_on_in_its_own_context(early: bool) -> None:
    async def wait() -> str:
        PLACE.set("the task's")
        arrival = Arrival(asyncio.get_running_loop())
        thread = threading.Thread(target=arrival.arrive)
        thread.start()
        if early:
            thread.join()
        await arrival
        return PLACE.get()

    async def main() -> str:
        return await asyncio.wait_for(asyncio.create_task(wait()), 10)

    assert asyncio.run(main()) == "the task's"


def test_a_cancelled_task_hears_of_it_once_and_a_late_arrival_is_nobodys() -> None:
    async def main() -> list[str]:
        heard: list[str] = []
        arrival = Arrival(asyncio.get_running_loop())

        async def wait() -> None:
            try:
                await arrival
            except asyncio.CancelledError as stop:
                heard.append(str(stop))
                raise

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel("stop")
        arrival.arrive()
        await asyncio.wait([task])
        assert task.cancelled()
        return heard

    assert asyncio.run(main()) == ["stop"]


def test_a_cancellation_after_the_arrival_still_reaches_the_task() -> None:
    async def main() -> bool:
        arrival = Arrival(asyncio.get_running_loop())

        async def wait() -> None:
            await arrival

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        arrival.arrive()
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(main())
