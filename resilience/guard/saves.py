"""Saves: how long the training waits for one (the stall), and when the checkpoint is durable.

A synchronous save is durable at the end of its `with` block. An asynchronous one, whose handles were passed to
`until`, is in flight from then on, and a thread polls the handles. With a store every save is in flight until its
checkpoint is committed. Leaving the guard waits for the saves in flight.
"""

from __future__ import annotations

import time

from resilience.errors import GuardError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Any

    from resilience.guard.decision import Decision
    from resilience.guard.store_ranks import Part

    Poll = Callable[[], bool]

FIRST_POLL_S, LAST_POLL_S = 0.01, 0.5
"""The interval between polls of a save in flight grows from the first to the last."""
POLL_GROWTH = 1.05
"""So that a poll comes late by a twentieth of the time so far: a commit is several phases, each seen by a poll."""


class SaveNotDurable(Exception):
    """An asynchronous save failed without an exception of its own, or was cut off."""


class SaveBlock:
    """The `with` block around a save. An exception passes through, and the requesting triggers receive `failed`.

    A nested block is part of the outer one: trainers call each other's save methods.

    Attributes:
        step: the step after which the training saves.
        entered: when the training began to wait, at the start of the block, in monotonic seconds.
        began: when the save itself began; later than `entered` after waiting for an earlier save.
        decision: the decision to save that the save follows, or None.
        metrics: numbers that the checkpoint is kept by.
        part: the save's directory in the store; None without a store.
        number: the agreement's number of a save in flight.
        outer: the outermost enclosing block, or None.
        fault_inside: the exception of the last nested block, if it failed.
    """

    def __init__(
        self,
        enter: Callable[[SaveBlock], SaveBlock | None] = lambda block: None,
        leave: Callable[[SaveBlock, BaseException | None], None] = lambda block, error: None,
        metrics: dict[str, float] | None = None,
    ) -> None:
        """`enter` returns the enclosing block, or None; `leave` gets the exception that ended the block, or None."""
        self.step = 0
        self.entered = self.began = 0.0
        self.decision: Decision | None = None
        self.number = 0
        self.fault_inside: BaseException | None = None
        self.metrics = metrics or {}
        self.part: Part | None = None
        self._fault: BaseException | None = None
        self._is_written = False
        self._enter, self._leave = enter, leave
        self.outer: SaveBlock | None = None
        self._is_open = False
        self._polls: list[Poll] = []

    def until(self, *handles: Any) -> None:
        """Mark the save as asynchronous: durable once all `handles` have succeeded.

        A handle is a future (`concurrent.futures`, or the result of `torch.distributed.checkpoint.async_save`), a
        thread, a process (`multiprocessing`, `subprocess`), an Orbax manager or checkpointer (any object with
        `wait_until_finished`), or a function without arguments that returns True when done and raises on failure. None
        is ignored: a rank that takes no part in the save. A thread of the guard polls the handles in order, each after
        those before it have succeeded: a function after a future may complete the future's work, and is not called
        again after it has returned True.

        A save fails with the exception of its future or thread, or with the exit code of its process.
        Raise GuardError for any other object, and outside of the block.
        """
        if not self._is_open:
            raise GuardError(
                "save.until() was called outside of its block; the save already counts as durable",
                hint="with guard.saving() as save: save.until(start_the_save())",
            )
        record_thread_errors()  # a library may have replaced the hook
        polls = [poll_of(handle) for handle in handles if handle is not None]
        (self.outer or self)._polls += polls

    @property
    def path(self) -> Path:
        """Return the empty directory that every rank saves into. Raise GuardError without a store."""
        return self._open_part().path

    @property
    def is_first(self) -> bool:
        """Return whether this is rank 0, in a guard with a store. Raise GuardError without one."""
        return self._open_part().is_first

    def _open_part(self) -> Part:
        part = (self.outer or self).part
        if part is None:
            raise GuardError(
                "this guard has no store of checkpoints, or the block around the save was not entered",
                hint="TrainingGuard.from_env(store=Store.from_env()), then `with guard.saving() as part:`",
            )
        return part

    @property
    def is_in_flight(self) -> bool:
        """Return whether the save is not known to be durable: a handle has not succeeded, or there is no commit."""
        return bool(self._polls) or self.part is not None

    def fail(self, error: BaseException) -> None:
        """Note an error of the block. With a store the save is still in flight until the other ranks know."""
        self._polls.clear()
        self._fault = error

    def look(self) -> bool:
        """Return whether the save is durable. Raise the error that made it fail."""
        try:
            while self._polls and self._polls[0]():
                del self._polls[0]
        except BaseException as error:
            if self.part is None:
                raise
            self.fail(error)
        return not self._polls and (self.part is None or self._is_committed(self.part))

    def _is_committed(self, part: Part) -> bool:
        """Return whether the checkpoint of all ranks is committed. Raise the error of this rank rather than the store's
        words for it."""
        if not self._is_written:
            self._is_written = True
            part.written(self._fault)
        try:
            is_committed = part.look()
        except Exception:
            if self._fault is None:
                raise
            is_committed = True
        if is_committed and self._fault is not None:
            raise self._fault
        return is_committed

    def cut_off(self) -> SaveNotDurable:
        """Abandon a save in flight. Return the error that it ends with."""
        why = f"cut off after {time.monotonic() - self.began:.1f} s"
        if self.part is not None:
            try:
                self.part.cut_off(why)
            except Exception as error:
                why = f"{why}; {error}"
        return SaveNotDurable(why)

    def __enter__(self) -> SaveBlock:
        self.outer = self._enter(self)
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        self._leave(self, error)


class Saves:
    """The saves in flight, polled by a thread.

    Attributes:
        has_cut_off: whether a save was abandoned and none was durable since: that save may still hang.
    """

    def __init__(self, settled: Callable[[SaveBlock, BaseException | None], None]) -> None:
        """`settled` is called, from any thread, with each save that has ended, and its error or None."""
        import threading

        self._settled = settled
        self._changed = threading.Condition()
        self._in_flight: list[SaveBlock] = []
        self._is_hurried = False
        self._thread: threading.Thread | None = None
        self.has_cut_off = False

    @property
    def in_flight(self) -> tuple[SaveBlock, ...]:
        """Return the saves in flight, oldest first."""
        return tuple(self._in_flight)

    @property
    def newest(self) -> SaveBlock | None:
        """Return the save that has begun last of those in flight, or None."""
        in_flight = self._in_flight
        return in_flight[-1] if in_flight else None

    def add(self, saving: SaveBlock) -> None:
        """Add a save in flight."""
        import threading

        with self._changed:
            self._in_flight.append(saving)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="resil-saves", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # the interpreter shuts down (3.12): `wait` polls itself
                    self._thread = None

    def wait(
        self,
        wait_s: float,
        waiting: Callable[[SaveBlock, float], None] = lambda saving, waited_s: None,
        *,
        leave: int = 0,
    ) -> None:
        """Wait until at most `leave` saves are in flight. After `wait_s` seconds the others are cut off, the oldest
        first, and have failed.

        `waiting` is called every 50 ms with the oldest save and the seconds waited so far.
        """
        began = time.monotonic()
        with self._changed:
            self._is_hurried = True
            self._changed.notify_all()
        while len(in_flight := self.in_flight) > leave:
            saving = in_flight[0]
            waited_s = time.monotonic() - began
            if waited_s >= wait_s:
                self.has_cut_off = True
                self._end(saving, saving.cut_off())
                continue
            waiting(saving, waited_s)
            if self._thread is None:
                self._poll()
            with self._changed:
                if len(self._in_flight) > leave:
                    self._changed.wait(min(0.05, wait_s - waited_s))
        self._is_hurried = False

    def _run(self) -> None:
        pause_s = FIRST_POLL_S
        while True:
            with self._changed:
                if not self._in_flight:
                    pause_s = FIRST_POLL_S
                    self._changed.wait()
                elif not self._is_hurried:
                    self._changed.wait(pause_s)
                    pause_s = min(POLL_GROWTH * pause_s, LAST_POLL_S)
                else:
                    self._changed.wait(FIRST_POLL_S)
            self._poll()

    def _poll(self) -> None:
        for saving in list(self._in_flight):
            try:
                is_durable = saving.look()
            except BaseException as error:  # no error of a handle may end the thread
                self._end(saving, error)
            else:
                if is_durable:
                    self._end(saving, None)

    def _end(self, saving: SaveBlock, error: BaseException | None) -> None:
        with self._changed:
            if saving not in self._in_flight:
                return  # cut off earlier
        # Settle first, then remove: `wait` must not return before the outcome is reported.
        self._settled(saving, error)
        with self._changed:
            if saving in self._in_flight:
                self._in_flight.remove(saving)
            self._changed.notify_all()


def as_metrics(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the metrics of a save as numbers. Raise GuardError for anything else."""
    try:
        return {str(name): float(value) for name, value in (metrics or {}).items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise GuardError(
            f"saving(metrics={metrics!r}): {error}", hint='pass numbers: metrics={"loss": float(loss)}'
        ) from None


# ---- handles --------------------------------------------------------------------------------------------------------


def poll_of(handle: Any) -> Poll:
    """Given a handle, return a function that returns whether the handle has succeeded, and raises if it failed.

    Raise GuardError if the object is not a handle. See `SaveBlock.until`.
    """
    make = _maker(handle)
    if make is not None:
        return make(handle)
    if callable(handle):
        return lambda: bool(handle())
    raise GuardError(
        f"save.until() does not support {type(handle).__name__}",
        hint="pass a future, a thread, a process, an Orbax manager, or a function that returns True when done",
    )


def handles_in(returned: Any) -> list[Any]:
    """Return the handles in the return value of a save function: the value itself, or the items of a tuple or list.

    Of callables only functions count, because a model is callable too. Raise GuardError for a coroutine, which has not
    saved anything.
    """
    import functools
    import types

    if isinstance(returned, tuple | list):
        return [handle for one in returned for handle in handles_in(one)]
    if isinstance(returned, types.CoroutineType):
        returned.close()
        raise GuardError(
            "the save function is `async`: calling it returned a coroutine and saved nothing",
            hint="asyncio.run(save())",
        )
    is_function = isinstance(returned, types.FunctionType | types.MethodType | functools.partial)
    is_handle = returned is not None and (is_function or _maker(returned) is not None)
    return [returned] if is_handle else []


def arguments_for(save: Callable[..., Any]) -> set[str]:
    """Return which of the arguments `label` and `path` a save function takes by name."""
    import inspect

    try:
        parameters = inspect.signature(save).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return set()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    return {"label", "path"} if takes_all else {"label", "path"} & {parameter.name for parameter in parameters}


def run_save(save: Callable[..., Any], takes: set[str], saving: SaveBlock, label: str) -> list[Any]:
    """Call a save function with those of `label` and, with a store, `path` that it takes. Return its handles."""
    arguments = {"label": label} if "label" in takes else {}
    if "path" in takes and saving.part is not None:
        return handles_in(save(path=saving.path, **arguments))
    return handles_in(save(**arguments))


def _maker(handle: Any) -> Callable[[Any], Poll] | None:
    """Return the factory of the poll function for a handle of a known kind, by its attributes; else None."""
    import threading

    def can(name: str) -> bool:
        return callable(getattr(handle, name, None))

    if hasattr(handle, "upload_completion"):  # torch.distributed.checkpoint.AsyncSaveResponse
        return _poll_response
    if can("done") and (can("exception") or can("value")):
        return lambda future: lambda: _future(future)
    if isinstance(handle, threading.Thread):
        return lambda thread: lambda: _thread(thread)
    if hasattr(handle, "exitcode") and can("is_alive"):  # multiprocessing
        return lambda process: lambda: _exited(process.exitcode)
    if can("poll") and hasattr(handle, "returncode"):  # subprocess
        return lambda process: lambda: _exited(process.poll())
    if can("wait_until_finished"):  # Orbax
        return _poll_waiting
    return None


def _poll_response(response: Any) -> Poll:
    parts = (response.upload_completion, getattr(response, "staging_completion", None))
    polls = [poll_of(part) for part in parts if part is not None]
    return lambda: all(poll() for poll in polls)


def _future(future: Any) -> bool:
    if not future.done():
        return False
    if callable(getattr(future, "exception", None)):
        error = future.exception()  # raises CancelledError by itself
        if error is not None:
            raise error
    else:
        future.value()  # torch.futures.Future: raises what failed
    return True


def _thread(thread: Any) -> bool:
    if thread.is_alive() or thread.ident is None:
        return False
    error: BaseException | None = getattr(thread, THREAD_ERROR, None)
    if error is not None:
        raise error
    return True


def _exited(code: int | None) -> bool:
    if code:
        raise SaveNotDurable(f"the process of the save exited with code {code}")
    return code is not None


def _poll_waiting(manager: Any) -> Poll:
    """Wait in a thread for a handle that can only be waited for."""
    from resilience.base.background import BackgroundCall

    def wait() -> bool:
        manager.wait_until_finished()
        check = getattr(manager, "check_for_errors", None)
        if callable(check):
            check()
        return True

    waiting = BackgroundCall(wait, "resil-save-waiter").start()
    return lambda: waiting.is_over and waiting.result()


THREAD_ERROR = "_resil_error"
"""Attribute for the exception that ended a thread, which Python's thread object does not keep."""


def record_thread_errors() -> None:
    """Record on each thread the exception that ends it. The previous threading.excepthook is still called."""
    import threading

    before = threading.excepthook
    if getattr(before, "records_errors", False):
        return

    def record(args: Any) -> None:
        if args.thread is not None:
            setattr(args.thread, THREAD_ERROR, args.exc_value)
        before(args)

    record.records_errors = True  # type: ignore[attr-defined]
    threading.excepthook = record
