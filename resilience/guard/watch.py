"""The threads that poll the triggers: one for the node's own resources, one for the shared file system."""

from __future__ import annotations

import os
import threading
import time
from functools import partial

from resilience.base.processes import name_thread
from resilience.guard.decision import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from resilience.guard.decision import Trigger
    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings

POLL_S = 1.0
"""The longest interval between polls of the node's triggers; the resolution of the step timer."""
MIN_POLL_S = 0.02
"""The shortest interval between polls of a trigger: at 500 MB/s, memory grows by 10 MB; a poll takes 50 us."""
STUCK_S = 60.0
"""Warn of a trigger whose poll takes longer: the other triggers in its thread wait."""
MAX_FAILURES = 10
"""A trigger that raised this many times in a row is disabled."""


def name_of(trigger: Trigger) -> str:
    """Return the `name` of a trigger, else that of its class."""
    try:
        return str(getattr(trigger, "name", type(trigger).__name__))
    except Exception:  # a user's property may raise
        return type(trigger).__name__


def is_polled_on(trigger: Trigger, place: RankInfo) -> bool:
    """Return whether this rank polls the trigger."""
    ranks = getattr(trigger, "ranks", "every")
    return ranks == "every" or place.is_first or (ranks == "node" and place.is_first_of_node)


def next_poll_s(trigger: Trigger) -> float:
    """Return a trigger's `look_again_s`; infinity without one."""
    try:
        return max(MIN_POLL_S, float(trigger.look_again_s))  # type: ignore[attr-defined]
    except Exception:  # missing, None, or not a number
        return float("inf")


def to_request(trigger: Trigger, returned: object) -> Request | None:
    """Given the return value of `poll()`, return a request or None. Raise TypeError for any other value."""
    if returned is None:
        return None
    if isinstance(returned, str):
        returned = Request(name_of(trigger), returned)
    if isinstance(returned, Request):
        _check(returned)
        # One line, because it is printed to terminals and inserted into sentences.
        returned.why = " ".join(str(returned.why or "").split()) or f"requested by the trigger {name_of(trigger)}"
        return returned
    raise TypeError(f"poll() returned {type(returned).__name__}, not a Request, a text or None")


def _check(request: Request) -> None:
    """Raise TypeError if a field has the wrong type: the request is sent to other ranks as JSON."""
    types = (("save", bool), ("stop", bool), ("discard", bool), ("label", str), ("exit_code", int), ("at", int))
    wrong = [name for name, kind in types if type(getattr(request, name)) is not kind]
    if wrong:
        raise TypeError(f"Request({', '.join(f'{name}={getattr(request, name)!r}' for name in wrong)})")


class Watch:
    """A thread that polls its triggers every `every_s` seconds, or sooner on request, and delivers the outcomes of
    their requests.

    A trigger with an open request is not polled. A trigger that raises is reported, and does not affect the training.

    Attributes:
        polling: the trigger whose `poll()` is running, and since when (monotonic seconds), or None.
    """

    def __init__(
        self,
        name: str,
        triggers: Sequence[Trigger],
        *,
        every_s: float,
        is_irregular: bool = False,
        on_request: Callable[[Request], None],
        recorder: Recorder,
        first: Callable[[Sequence[Request]], None] = lambda requests: None,
        also: Callable[[], None] = lambda: None,
    ) -> None:
        """`is_irregular`: an interval is anything from a half to one and a half of `every_s`, so that what repeats as
        often, such as a step, is not always seen at the same point."""
        self._triggers = list(triggers)
        self._every_s = every_s
        self._is_irregular = is_irregular
        self._on_request = on_request
        self._recorder = recorder
        self._first = first
        self._also = also
        self._pending: set[int] = set()
        self._failures: dict[int, int] = {}
        self._outcomes: list[tuple[frozenset[str], str]] = []
        self._wakeup = threading.Event()
        self._over = False
        self.polling: tuple[Trigger, float] | None = None
        self._thread = threading.Thread(target=self._run, name=f"resil-{name}", daemon=True)

    def start(self) -> None:
        """Start polling, at once."""
        self._thread.start()

    def notify(self, names: Iterable[str], outcome: str) -> None:
        """Deliver the outcome of a request to the triggers of these names, from this thread."""
        self._outcomes.append((frozenset(names), outcome))
        self._wakeup.set()

    def wake(self) -> None:
        """Poll now."""
        self._wakeup.set()

    def stop(self, wait_s: float) -> None:
        """Deliver the last outcomes, then end the thread; abandon a thread that hangs in a dead file system."""
        self._over = True
        self._wakeup.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(wait_s)

    def _run(self) -> None:
        name_thread()
        requested = self._poll(self._triggers)
        self._safely(lambda: self._first(requested))
        while not self._over:
            self._safely(self._also)
            self._wait()
            if not self._over:
                self._poll(self._triggers)
        self._deliver_outcomes()
        self._safely(self._also)

    def _wait(self) -> None:
        """Return when all triggers are due; meanwhile poll those with a shorter interval."""
        factor = 0.5 + os.urandom(1)[0] / 255 if self._is_irregular else 1.0
        end = time.monotonic() + factor * self._every_s
        while not self._over:
            left_s = max(0.0, end - time.monotonic())
            skipped = self._pending | self._failures.keys()
            urgent = [one for one in self._triggers if next_poll_s(one) < left_s and id(one) not in skipped]
            is_woken = self._wakeup.wait(min(map(next_poll_s, urgent), default=left_s))
            self._wakeup.clear()
            self._deliver_outcomes()
            if is_woken or not urgent:
                return
            self._poll(urgent)

    def _poll(self, triggers: Sequence[Trigger]) -> list[Request]:
        requested = []
        for trigger in triggers:
            key = id(trigger)
            if key in self._pending or self._failures.get(key, 0) >= MAX_FAILURES:
                continue
            self.polling = (trigger, time.monotonic())
            try:
                request = to_request(trigger, trigger.poll())
                self._failures.pop(key, None)
            except BaseException as error:  # sys.exit() in a user's trigger must not end the thread
                self._failed(trigger, error, "poll")
                continue
            finally:
                self.polling = None
            if request is not None:
                self._pending.add(key)
                requested.append(request)
                self._recorder.event("request", trigger=request.trigger, why=request.why)
                self._safely(partial(self._on_request, request))
        return requested

    def _deliver_outcomes(self) -> None:
        while self._outcomes:
            names, outcome = self._outcomes.pop(0)
            for trigger in self._triggers:
                if id(trigger) in self._pending and name_of(trigger) in names:
                    self._pending.discard(id(trigger))
                    try:
                        trigger.done(outcome)
                    except BaseException as error:
                        self._failed(trigger, error, "done")

    def _failed(self, trigger: Trigger, error: BaseException, method: str) -> None:
        count = self._failures[id(trigger)] = self._failures.get(id(trigger), 0) + 1
        name = name_of(trigger)
        if count == 1:
            self._recorder.warn(f"the trigger {name} failed in {method}(): {error!r}; retrying")
        elif count == MAX_FAILURES:
            self._recorder.warn(f"the trigger {name} failed {count} times in a row and is disabled")

    def _safely(self, work: Callable[[], None]) -> None:
        """Run `work`; an error of the guard itself does not end the thread."""
        try:
            work()
        except Exception as error:
            self._recorder.warn(f"a background task of the guard failed: {error!r}", key="also")


class Watches:
    """All polling threads: one for the node, one for the user's triggers, and, on rank 0 with a run directory, one for
    shared files, which may hang with their server.

    Attributes:
        has_files: whether there is a thread for files.
    """

    def __init__(
        self,
        place: RankInfo,
        settings: GuardSettings,
        recorder: Recorder,
        triggers: Sequence[Trigger],
        own_triggers: Sequence[Trigger],
        *,
        on_request: Callable[[Request], None],
        first: Callable[[Sequence[Request]], None],
        at_files: Callable[[], None],
        at_node: Callable[[], None],
    ) -> None:
        """`first` gets the requests of the first poll of the files; `at_files` and `at_node` are background tasks of
        the two threads."""
        own = [trigger for trigger in own_triggers if is_polled_on(trigger, place)]
        built_in = [trigger for trigger in triggers if is_polled_on(trigger, place)]
        self.has_files = bool(place.is_first and place.run_dir)
        self._recorder = recorder
        self._first = first
        self._on_request = on_request
        self._file_s = settings.poll_s
        self._on_saved = [
            saved for saved in (getattr(trigger, "saved", None) for trigger in (*built_in, *own)) if saved
        ]
        shared = [trigger for trigger in built_in if self.has_files and getattr(trigger, "shared", False)]
        local = [trigger for trigger in built_in if trigger not in shared]
        watch = partial(Watch, on_request=on_request, recorder=recorder)
        node_s = min(settings.poll_s, POLL_S)
        self._node = watch("watch", local, every_s=node_s, is_irregular=True, also=self._check_stuck)
        self._at_node = at_node
        self._all = [self._node]
        if own:
            self._all.append(watch("triggers", own, every_s=settings.poll_s))
        self._files = watch("files", shared, every_s=settings.poll_s, first=first, also=at_files)
        if self.has_files:
            self._all.append(self._files)

    def start(self) -> None:
        """Start all threads."""
        if not self.has_files:
            self._first([])
        for watch in reversed(self._all):
            watch.start()

    def watch_files(self, triggers: Sequence[Trigger]) -> None:
        """Start a thread for shared files on a rank other than 0, after rank 0 is gone."""
        watch = Watch("files", triggers, every_s=self._file_s, on_request=self._on_request, recorder=self._recorder)
        self._all.append(watch)
        watch.start()

    def notify(self, names: Iterable[str], outcome: str) -> None:
        """Deliver the outcome of a request to the triggers of these names."""
        for watch in self._all:
            watch.notify(names, outcome)

    def save_began(self) -> None:
        """Poll the node's triggers now: memory use rises during a save."""
        self._node.wake()

    def saved(self, step: int) -> None:
        """Call the triggers' `saved` and poll all now: a stop right after a save loses no steps."""
        for saved in self._on_saved:
            try:
                saved(step)
            except Exception as error:
                self._recorder.warn(f"a trigger failed in saved(): {error!r}", key="saved")
        if self._on_saved:
            for watch in self._all:
                watch.wake()

    def wake(self) -> None:
        """Poll all triggers, and run the background tasks, now."""
        for watch in self._all:
            watch.wake()

    def wake_files(self) -> None:
        """Poll the shared files, and run their background tasks, now."""
        self._files.wake()

    def stop(self, wait_s: float) -> None:
        """Deliver the last outcomes, then end all threads; abandon a thread that hangs after `wait_s`."""
        for watch in self._all:
            watch.stop(wait_s)

    def _check_stuck(self) -> None:
        """Warn of triggers that hang in other threads; runs in the node's thread, whose triggers do not hang."""
        now = time.monotonic()
        for watch in self._all:
            stuck = watch.polling
            if stuck is not None and now - stuck[1] > STUCK_S:
                name = name_of(stuck[0])
                self._recorder.warn(
                    f"the trigger {name} has not returned from poll() for {STUCK_S:g} s; the triggers polled after it "
                    "wait. Check for a hung file system",
                    key=f"stuck {name}",
                )
        self._at_node()
