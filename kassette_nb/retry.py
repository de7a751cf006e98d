"""Repeating a failed attempt inside a step, with pauses that grow.

The pauses and their jitter are tenacity's; it is imported when a step first asks for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from .errors import JournalValueError


class Retry(msgspec.Struct, frozen=True):
    """How often and how soon to try again.

    Args:
        attempts: How many in all, at least 1.
        on: The exceptions worth another attempt; others fail the step at once.
        wait: Seconds before the second attempt; doubled before each further one.
        wait_max: The longest pause, in seconds.
        jitter: Up to so many seconds are added to each pause, at random.

    Raises:
        ValueError: A number is out of range.
    """

    attempts: int = 3
    on: type[Exception] | tuple[type[Exception], ...] = Exception
    wait: float = 0.1
    wait_max: float = 30.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts={self.attempts} must be 1 or more")
        if min(self.wait, self.wait_max, self.jitter) < 0:
            raise ValueError("wait, wait_max and jitter are seconds, not negative")


def as_retry(given: Retry | int | None) -> Retry | None:
    """Return what `Context.with_options` was given as a policy.

    Raises:
        JournalValueError: It is neither a `Retry`, nor a number of attempts, nor None.
    """
    if given is None or isinstance(given, Retry):
        return given
    if type(given) is int and given >= 1:
        return Retry(attempts=given)
    raise JournalValueError(
        f"retry={given!r} is neither a Retry(…) nor a number of attempts, 1 or more. Nothing was "
        "recorded.",
        path="retry",
        reason="not a policy",
    )


Failed = Callable[[int, BaseException], None]


async def attempts(retry: Retry, fn: Callable[[], Awaitable[Any]], failed: Failed) -> Any:
    """Await ``fn()`` until it succeeds; ``failed(n, error)`` is told of each attempt but the last.

    Raises:
        BaseException: The last attempt's error.
    """
    from tenacity import AsyncRetrying

    return await AsyncRetrying(**_policy(retry, failed))(fn)


def attempts_blocking(retry: Retry, fn: Callable[[], Any], failed: Failed) -> Any:
    """Call ``fn()`` until it succeeds; see `attempts`."""
    from tenacity import Retrying

    return Retrying(**_policy(retry, failed))(fn)


def _policy(retry: Retry, failed: Failed) -> dict[str, Any]:
    import tenacity

    def before_sleep(state: Any) -> None:
        failed(state.attempt_number, state.outcome.exception())

    return {
        "stop": tenacity.stop_after_attempt(retry.attempts),
        "wait": tenacity.wait_exponential(multiplier=retry.wait, max=retry.wait_max)
        + tenacity.wait_random(0, retry.jitter),
        "retry": tenacity.retry_if_exception_type(retry.on),
        "before_sleep": before_sleep,
        "reraise": True,
    }
