"""Saves: how long the training waits for one (the stall), and when its bytes are safe (durable).

A save is durable when its `with` block is left, unless the block was told to wait for something: a save that goes on
in the background. It is in flight then, and one thread looks now and then whether it has ended. Leaving the guard waits
for what is in flight.
"""

from __future__ import annotations

import time

from resilience.errors import GuardError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

    from resilience.guard.decision import Decision

    Poll = Callable[[], bool]

FIRST_LOOK_S, LAST_LOOK_S = 0.01, 0.5
"""How often a save in flight is looked at: less and less often, since a slow one may be noticed a little later."""


class SaveNotDurable(Exception):
    """A save in the background has failed without an exception of its own, or was cut off."""


class SaveBlock:
    """The `with` block around a save. An exception in it passes through; what asked for the save hears that it failed.

    One inside another is part of the outer one: trainers call each other's save methods.

    Attributes:
        step: after which it is made.
        entered: when the block was entered, in monotonic seconds: the training waits from then on.
        began: when the save itself began; later, if an earlier one had to be waited for.
        decision: the decision to save that it obeys, or None.
        number: by which the agreement knows it while it is in flight.
        outer: the outermost block around this one, or None.
        fault_inside: what ended the last block inside this one, if that failed.
    """

    def __init__(
        self,
        enter: Callable[[SaveBlock], SaveBlock | None] = lambda block: None,
        leave: Callable[[SaveBlock, BaseException | None], None] = lambda block, error: None,
    ) -> None:
        """`enter` returns the block that this one is part of, or None; `leave` gets what ended the block."""
        self.step = 0
        self.entered = self.began = 0.0
        self.decision: Decision | None = None
        self.number = 0
        self.fault_inside: BaseException | None = None
        self._enter, self._leave = enter, leave
        self.outer: SaveBlock | None = None
        self._is_open = False
        self._polls: list[Poll] = []

    def until(self, *handles: Any) -> None:
        """The save goes on in the background: it is durable when all of `handles` have ended well.

        A handle is a future (`concurrent.futures`, what `torch.distributed.checkpoint.async_save` returns), a thread, a
        process (`multiprocessing`, `subprocess`), an Orbax manager or checkpointer (whatever has
        `wait_until_finished`), or a function without arguments that returns whether it is done, and raises when it
        failed. None stands for nothing: a rank that has no part in the save. They are asked in their order, by a
        thread of the guard, each when those before it have ended well: a function after a future may finish what the
        future began, and is called no more once it has returned True.

        A future tells its exception, a process its exit code, a thread the exception that ended it.
        Raise GuardError for anything else, and outside of the block.
        """
        if not self._is_open:
            raise GuardError(
                "save.until() was called outside of its block, where the save counts as durable already",
                hint="with guard.saving() as save: save.until(start_the_save())",
            )
        note_fallen_threads()  # a library may have taken its place
        polls = [poll_of(handle) for handle in handles if handle is not None]
        (self.outer or self)._polls += polls

    @property
    def is_in_flight(self) -> bool:
        """Whether something of it may still be on its way."""
        return bool(self._polls)

    def look(self) -> bool:
        """Whether all of it is durable. Raise what made it fail."""
        while self._polls and self._polls[0]():
            del self._polls[0]
        return not self._polls

    def __enter__(self) -> SaveBlock:
        self._is_open = True
        self.outer = self._enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        self._leave(self, error)


class Saves:
    """The saves in flight, of which there is one at most; a thread looks after them from the first one on.

    Attributes:
        has_cut_off: whether one was given up that had not ended, and none was durable since: it may still hang here.
    """

    def __init__(self, settled: Callable[[SaveBlock, BaseException | None], None]) -> None:
        """`settled` is called, from any thread, with each save that has ended and what made it fail, or None."""
        import threading

        self._settled = settled
        self._changed = threading.Condition()
        self._in_flight: list[SaveBlock] = []
        self._is_hurried = False
        self._thread: threading.Thread | None = None
        self.has_cut_off = False

    @property
    def newest(self) -> SaveBlock | None:
        """The one that is in flight, or None."""
        in_flight = self._in_flight
        return in_flight[-1] if in_flight else None

    def add(self, saving: SaveBlock) -> None:
        """It is in flight from now on."""
        import threading

        with self._changed:
            self._in_flight.append(saving)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="resil-saves", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # the interpreter is ending (3.12): `wait` looks by itself
                    self._thread = None

    def wait(self, wait_s: float, waiting: Callable[[SaveBlock, float], None] = lambda saving, waited_s: None) -> None:
        """Return when nothing is in flight any more. What is not durable after `wait_s` seconds is cut off: it failed.

        `waiting` is called every 50 ms with the save, and the seconds of waiting so far.
        """
        began = time.monotonic()
        with self._changed:
            self._is_hurried = True
            self._changed.notify_all()
        while (saving := self.newest) is not None:
            waited_s = time.monotonic() - began
            if waited_s >= wait_s:
                took_s = time.monotonic() - saving.began
                self.has_cut_off = True
                self._end(saving, SaveNotDurable(f"it was cut off after {took_s:.1f} s"))
                continue
            waiting(saving, waited_s)
            if self._thread is None:
                self._look()
            with self._changed:
                if self._in_flight:
                    self._changed.wait(min(0.05, wait_s - waited_s))
        self._is_hurried = False

    def _run(self) -> None:
        pause_s = FIRST_LOOK_S
        while True:
            with self._changed:
                if not self._in_flight:
                    pause_s = FIRST_LOOK_S
                    self._changed.wait()
                elif not self._is_hurried:
                    self._changed.wait(pause_s)
                    pause_s = min(1.5 * pause_s, LAST_LOOK_S)
                else:
                    self._changed.wait(FIRST_LOOK_S)
            self._look()

    def _look(self) -> None:
        for saving in list(self._in_flight):
            try:
                is_durable = saving.look()
            except BaseException as error:  # whatever it is, it must not end the thread
                self._end(saving, error)
            else:
                if is_durable:
                    self._end(saving, None)

    def _end(self, saving: SaveBlock, error: BaseException | None) -> None:
        with self._changed:
            if saving not in self._in_flight:
                return  # it was cut off, and ended nevertheless
        # Settled first and then taken out: who waits goes on when all is told.
        self._settled(saving, error)
        with self._changed:
            if saving in self._in_flight:
                self._in_flight.remove(saving)
            self._changed.notify_all()


# ---- handles --------------------------------------------------------------------------------------------------------


def poll_of(handle: Any) -> Poll:
    """Given a handle, return a function that tells whether it has ended, and raises if it failed.

    Raise GuardError if it is nothing that could be asked. See `SaveBlock.until`.
    """
    make = _maker(handle)
    if make is not None:
        return make(handle)
    if callable(handle):
        return lambda: bool(handle())
    raise GuardError(
        f"save.until() cannot ask a {type(handle).__name__} whether it is done",
        hint="give a future, a thread, a process, an Orbax manager, or a function that returns whether it is done",
    )


def handles_in(returned: Any) -> list[Any]:
    """Given what a save function returned, return the handles in it: itself, or what a tuple or list holds.

    A model can be called as well: of what can be called only functions count. Raise GuardError for a coroutine: nothing
    of its save was done.
    """
    import functools
    import types

    if isinstance(returned, tuple | list):
        return [handle for one in returned for handle in handles_in(one)]
    if isinstance(returned, types.CoroutineType):
        returned.close()
        raise GuardError(
            "the save function is `async`: it was called, and nothing of it was done", hint="asyncio.run(save())"
        )
    is_function = isinstance(returned, types.FunctionType | types.MethodType | functools.partial)
    is_handle = returned is not None and (is_function or _maker(returned) is not None)
    return [returned] if is_handle else []


def _maker(handle: Any) -> Callable[[Any], Poll] | None:
    """What makes the poll of a handle that is of a known kind, told by what it can do."""
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
    error: BaseException | None = getattr(thread, FALLEN, None)
    if error is not None:
        raise error
    return True


def _exited(code: int | None) -> bool:
    if code:
        raise SaveNotDurable(f"its process ended with {code}")
    return code is not None


def _poll_waiting(manager: Any) -> Poll:
    """A thread waits for what can only be waited for."""
    from resilience.base.background import BackgroundCall

    def wait() -> bool:
        manager.wait_until_finished()
        check = getattr(manager, "check_for_errors", None)
        if callable(check):
            check()
        return True

    waiting = BackgroundCall(wait, "resil-save-waiter").start()
    return lambda: waiting.is_over and waiting.result()


FALLEN = "_resil_fallen"
"""Attribute of a thread that an exception has ended: a thread itself does not tell it."""


def note_fallen_threads() -> None:
    """Have threads bear the exception that ended them. Who hears of it today (threading.excepthook) still does."""
    import threading

    before = threading.excepthook
    if getattr(before, "notes_fallen", False):
        return

    def note(args: Any) -> None:
        if args.thread is not None:
            setattr(args.thread, FALLEN, args.exc_value)
        before(args)

    note.notes_fallen = True  # type: ignore[attr-defined]
    threading.excepthook = note
