"""``rate_limited``: Celery tasks that wait for a token before they run.

Promises: a task waits up to ``wait`` seconds; then it goes back to its queue with a countdown, which
is not a retry and costs none. After a failure it is retried ``retries`` times, after 1, 2, 4 seconds.
Numbers that the decorator does not give are those of the daemon's guard, as it last said them. The
permit of a provider is held as long as its task runs.
Never: imports Celery before a decorated function is called.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import math
import threading
import time
from dataclasses import dataclass, fields, replace
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Tuple, TypeVar, Union

from . import _forks
from . import _protocol as protocol
from ._protocol import Cost
from .client import AsyncClient, Client
from .errors import BadRequest, QueueFull, RateLimitExceeded, TollgateError, TollgateUnavailable
from .permit import Permit

F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger("tollgate")

#: What the daemon says about a guard is asked for again after this time: a reload may change it.
RULES_FOR = 60.0
#: A renewal is due in this part of the time within which a call is to be made, so that one may be lost.
RENEW_AT = 0.5
#: One day, as the longest wait.
COUNTDOWN_MAX = protocol.TIMEOUT_MAX


class _DefaultClient:
    """Made when it is first needed."""

    def __init__(self) -> None:
        self._client: Optional[Client] = None
        self.after_fork()
        _forks.register(self)

    def after_fork(self) -> None:
        """Another thread of the parent may hold the lock; the client itself survives a fork."""
        self._lock = threading.Lock()

    def get(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = Client()
            return self._client


_default = _DefaultClient()


def default_client() -> Client:
    """The client of the environment; one per process, forks included."""
    return _default.get()


def blocking(client: Union[Client, AsyncClient]) -> Client:
    """Tasks do not await."""
    if isinstance(client, AsyncClient):
        raise BadRequest("`client` is an AsyncClient", hint="give tollgate.Client()")
    return client


@dataclass(frozen=True)
class _TaskRules:
    """What a guard means for tasks; the values here are those of a guard that does not say."""

    wait: float = 300.0
    retry_delay: float = 60.0
    retries: int = 3
    factor: float = 2.0

    def learned(self, task: Optional[Mapping[str, Any]]) -> "_TaskRules":
        """With what the daemon says about the guard."""
        values: Dict[str, Any] = {}
        for known in fields(self):
            value = (task or {}).get(known.name)
            if isinstance(value, (int, float)):
                values[known.name] = value
        return replace(self, **values)

    def countdown(self, retries: int) -> float:
        """Seconds before the next retry: 1, 2, 4 …, and never more than a day."""
        if self.factor <= 1.0:
            return 1.0
        is_over = retries * math.log(self.factor) > math.log(COUNTDOWN_MAX)  # a power has no bound
        return COUNTDOWN_MAX if is_over else float(self.factor**retries)

    def chosen(self, own: Mapping[str, Any]) -> "_TaskRules":
        """With what the decorator says."""
        return replace(self, **{name: of for name, of in own.items() if of is not None})


#: By address and guard: until when, and what the daemon said. As many as the program names.
_learned: Dict[Tuple[str, str], Tuple[float, _TaskRules]] = {}


def rate_limited(
    identifier: Optional[str] = None,
    *,
    guard: str = "task",
    provider: Optional[str] = None,
    tokens: Cost = 1,
    wait: Optional[float] = None,
    retry_delay: Optional[float] = None,
    retries: Optional[int] = None,
    factor: Optional[float] = None,
    client: Optional[Client] = None,
) -> Callable[[F], F]:
    """Stands below ``@app.task``. ``identifier`` (default: the task's name) counts under ``guard``;
    with ``provider`` each run takes a permit of that provider instead.

    What is not given here is as the daemon's guard says; without a guard of names, and with
    ``provider``: 300 s, 60 s, 3 and 2.0."""
    if callable(identifier):
        raise BadRequest("`rate_limited` is used without parentheses", hint="write @rate_limited()")
    if client is not None:
        blocking(client)
    protocol.cost_of(tokens)
    if wait is not None:
        protocol.seconds("wait", wait)
    if retry_delay is not None:
        protocol.seconds("retry_delay", retry_delay)
    if retries is not None:
        protocol.count_of("retries", retries)
    is_number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
    if factor is not None and not (is_number and 1.0 <= factor <= 100.0):
        raise BadRequest("`factor` is not a factor", hint="give a number from 1 to 100")
    own = {"wait": wait, "retry_delay": retry_delay, "retries": retries, "factor": factor}

    def decorate(function: F) -> F:
        if inspect.iscoroutinefunction(function):
            raise BadRequest(
                f"`{function.__name__}` is a coroutine, and would run after its permit is settled",
                hint="use AsyncClient.acquire() inside of it",
            )

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            task = _current_task(args)
            taker = _Taker(client or default_client(), guard, provider, tokens, own)
            if task is None:  # called as a plain function
                with taker.acquire(identifier or function.__name__):
                    return function(*args, **kwargs)
            has_begun = False
            try:
                with taker.acquire(identifier or task.name):
                    has_begun = True
                    return function(*args, **kwargs)
            except (RateLimitExceeded, QueueFull, TollgateUnavailable) as denied:
                if task.request.is_eager:
                    raise  # without a broker there is no queue to go back to
                raise _put_back(task, denied, taker.rules().retry_delay) from denied
            except Exception as error:
                if _is_of_celery(error):
                    raise
                rules = taker.rules()
                if not has_begun and _is_time_limit(error):
                    raise _put_back(task, error, rules.retry_delay) from error
                countdown = rules.countdown(task.request.retries or 0)
                log.warning("task %s failed (%s)", task.name, type(error).__name__)
                raise task.retry(
                    exc=error, countdown=countdown, max_retries=rules.retries
                ) from error

        return run  # type: ignore[return-value]

    return decorate


class _Taker:
    """Takes what one run of a task needs, and knows what the daemon says about tasks."""

    def __init__(
        self,
        client: Client,
        guard: str,
        provider: Optional[str],
        tokens: Cost,
        own: Mapping[str, Any],
    ):
        self._client = client
        self._guard = guard
        self._provider = provider
        self._tokens = tokens
        self._own = own
        #: what the daemon has said in this run
        self._rules: Optional[_TaskRules] = None

    def rules(self) -> _TaskRules:
        """What holds for this run: as the daemon said in it, or else when it was last asked."""
        if self._rules is None and self._provider is None:
            _, self._rules = _learned.get(self._key(), (0.0, None))
        return (self._rules or _TaskRules()).chosen(self._own)

    @contextlib.contextmanager
    def acquire(self, name: str) -> Iterator[None]:
        """What a run needs, for as long as it takes."""
        if self._provider is None:
            with self._token(name):
                yield
            return
        wait = self.rules().wait
        permit = self._client.acquire(
            provider=self._provider, tokens=self._tokens, wait=wait > 0, timeout=wait
        )
        with permit, _renewed(permit):
            yield

    def _token(self, name: str) -> Permit:
        if self._own["wait"] is None and not self._is_fresh():
            # How long to wait may have changed. Each reply says it, and a token that is there needs no wait.
            try:
                return self._take(name, 0.0)
            except RateLimitExceeded as denied:
                if denied.retry_in is None or denied.retry_in > self.rules().wait:
                    raise  # the wait would be too long, or would not help
        return self._take(name, self.rules().wait)

    def _take(self, name: str, wait: float) -> Permit:
        try:
            permit = self._client.acquire(name, self._tokens, wait > 0, wait, guard=self._guard)
        except RateLimitExceeded as denied:
            self._learn(denied.task)
            raise
        self._learn(permit.task)
        return permit

    def _key(self) -> Tuple[str, str]:
        return (self._client.address.shown, self._guard)

    def _is_fresh(self) -> bool:
        until, _ = _learned.get(self._key(), (0.0, None))
        return time.monotonic() < until

    def _learn(self, task: Optional[Mapping[str, Any]]) -> None:
        self._rules = _TaskRules().learned(task)
        _learned[self._key()] = (time.monotonic() + RULES_FOR, self._rules)


@contextlib.contextmanager
def _renewed(permit: Permit) -> Iterator[None]:
    """Renews a permit while its task runs: its slot would come free, and another task could call."""
    is_over = threading.Event()

    def renew() -> None:
        while not is_over.wait((permit.use_within or 1.0) * RENEW_AT):
            try:
                permit.renew()
            except (QueueFull, TollgateUnavailable):
                continue  # the next one may come through
            except TollgateError as error:
                log.debug("the permit of %s is not renewed any more: %s", permit.provider, error)
                return

    if permit.use_within is not None:
        threading.Thread(target=renew, name="tollgate-renew", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def _current_task(args: "tuple[Any, ...]") -> Any:
    """The task that runs: the first argument of a bound one, else the worker's current one."""
    from celery import Task, current_task

    if args and isinstance(args[0], Task):
        task: Any = args[0]
    else:
        task = current_task
    # Called as a function, `task.request` has no id.
    return task if task and task.request.id and not task.request.called_directly else None


def _is_of_celery(error: Exception) -> bool:
    from celery.exceptions import TaskPredicate

    return isinstance(error, TaskPredicate)  # Retry, Ignore, Reject


def _is_time_limit(error: Exception) -> bool:
    from celery.exceptions import SoftTimeLimitExceeded

    return isinstance(error, SoftTimeLimitExceeded)


def _is_of_broker(error: Exception) -> bool:
    from kombu.exceptions import OperationalError

    return isinstance(error, OperationalError)


def _put_back(task: Any, denied: Exception, retry_delay: float) -> Any:
    """Queues the task again with the same id and the same number of retries."""
    from celery.exceptions import Reject, Retry

    retry_in = getattr(denied, "retry_in", None)
    countdown = max(retry_delay, retry_in or 0.0)
    log.info("task %s is queued again in %.0f s: %s", task.name, countdown, denied)
    signature = task.signature_from_request(countdown=countdown, retries=task.request.retries)
    try:
        signature.apply_async()
    except Exception as error:
        # The broker is away. With `acks_late` the message is still there, and stays there; without it, it is lost,
        # as in Celery's own retry.
        return Reject(error, requeue=_is_of_broker(error))
    return Retry(exc=denied, when=countdown, sig=signature)
