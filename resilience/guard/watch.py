"""The threads that ask the triggers: one for what is on this node, one for the shared file system."""

from __future__ import annotations

import threading
import time
from functools import partial

from resilience.guard.decision import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from resilience.guard.decision import Trigger
    from resilience.guard.rank_info import RankInfo
    from resilience.guard.recorder import Recorder
    from resilience.guard.settings import GuardSettings

LOOK_S = 1.0
"""How often what is on this node is looked at, at most: steps are timed to within this."""
SOONEST_S = 0.02
"""How soon a trigger is asked again, at most: at 500 MB/s 10 MB more are used by then, and a look takes 50 us."""
STUCK_S = 60.0
"""A trigger that takes longer to answer is named: the others in its thread wait for it."""
MOST_FAILURES = 10
"""A trigger that raised so often in a row is not asked again."""


def name_of(trigger: Trigger) -> str:
    """What a trigger is called: its `name`, else that of its class."""
    try:
        return str(getattr(trigger, "name", type(trigger).__name__))
    except Exception:  # somebody's property
        return type(trigger).__name__


def asked_here(trigger: Trigger, place: RankInfo) -> bool:
    """Whether this rank asks it."""
    ranks = getattr(trigger, "ranks", "every")
    return ranks == "every" or place.is_first or (ranks == "node" and place.is_first_of_node)


def again_s(trigger: Trigger) -> float:
    """In how many seconds a trigger wants to be asked again; infinity when it does not say."""
    try:
        return max(SOONEST_S, float(trigger.look_again_s))  # type: ignore[attr-defined]
    except Exception:  # it has none, it is None, or it is nonsense
        return float("inf")


def understand(trigger: Trigger, requested: object) -> Request | None:
    """Given what `poll()` returned, return a request or None. Raise TypeError if it is neither."""
    if requested is None:
        return None
    if isinstance(requested, str):
        requested = Request(name_of(trigger), requested)
    if isinstance(requested, Request):
        # It goes to terminals and into sentences.
        _check(requested)
        requested.why = " ".join(str(requested.why or "").split()) or f"the trigger {name_of(trigger)} requests it"
        return requested
    raise TypeError(f"poll() returned {type(requested).__name__}, not a Request, a text or None")


def _check(request: Request) -> None:
    """Raise TypeError if a request would not travel to other ranks as it is: it must mean the same everywhere."""
    words = (("save", bool), ("stop", bool), ("discard", bool), ("label", str), ("exit_code", int))
    wrong = [name for name, kind in words if type(getattr(request, name)) is not kind]
    if wrong:
        raise TypeError(f"Request({', '.join(f'{name}={getattr(request, name)!r}' for name in wrong)})")


class Watch:
    """A thread that asks its triggers every `every_s` seconds, or as soon as they want, and tells them how their
    requests ended.

    A trigger that asked is not asked again until its request was obeyed. One that raises is named and costs the
    training nothing.
    """

    def __init__(
        self,
        name: str,
        triggers: Sequence[Trigger],
        *,
        every_s: float,
        on_request: Callable[[Request], None],
        recorder: Recorder,
        first: Callable[[Sequence[Request]], None] = lambda requests: None,
        also: Callable[[], None] = lambda: None,
    ) -> None:
        self._triggers = list(triggers)
        self._every_s = every_s
        self._on_request = on_request
        self._recorder = recorder
        self._first = first
        self._also = also
        self._pending: set[int] = set()
        self._failures: dict[int, int] = {}
        self._outcomes: list[tuple[frozenset[str], str]] = []
        self._wakeup = threading.Event()
        self._over = False
        self._asking: tuple[Trigger, float] | None = None
        self._thread = threading.Thread(target=self._run, name=f"resil-{name}", daemon=True)

    def start(self) -> None:
        """Begin to look, at once."""
        self._thread.start()

    def obeyed(self, names: Iterable[str], outcome: str) -> None:
        """A decision was obeyed that these triggers asked for. They hear it from this thread."""
        self._outcomes.append((frozenset(names), outcome))
        self._wakeup.set()

    def wake(self) -> None:
        """Look now."""
        self._wakeup.set()

    def stop(self, wait_s: float) -> None:
        """Hear the last outcomes, then end. A thread that hangs in a dead file system is left behind."""
        self._over = True
        self._wakeup.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(wait_s)

    def _run(self) -> None:
        requested = self._look(self._triggers)
        self._safely(lambda: self._first(requested))
        while not self._over:
            self._safely(self._also)
            self._wait()
            if not self._over:
                self._look(self._triggers)
        self._tell_outcomes()
        self._safely(self._also)

    def _wait(self) -> None:
        """Return when all triggers are to be asked. Those that want to be asked sooner are asked meanwhile."""
        end = time.monotonic() + self._every_s
        while not self._over:
            left_s = max(0.0, end - time.monotonic())
            passed_over = self._pending | self._failures.keys()
            hurried = [one for one in self._triggers if again_s(one) < left_s and id(one) not in passed_over]
            is_woken = self._wakeup.wait(min(map(again_s, hurried), default=left_s))
            self._wakeup.clear()
            self._tell_outcomes()
            if is_woken or not hurried:
                return
            self._look(hurried)

    def _look(self, triggers: Sequence[Trigger]) -> list[Request]:
        requested = []
        for trigger in triggers:
            key = id(trigger)
            if key in self._pending or self._failures.get(key, 0) >= MOST_FAILURES:
                continue
            self._asking = (trigger, time.monotonic())
            try:
                request = understand(trigger, trigger.poll())
                self._failures.pop(key, None)
            except BaseException as error:  # sys.exit() in somebody's trigger must not end the thread
                self._failed(trigger, error, "poll")
                continue
            finally:
                self._asking = None
            if request is not None:
                self._pending.add(key)
                requested.append(request)
                self._recorder.event("request", trigger=request.trigger, why=request.why)
                self._safely(partial(self._on_request, request))
        return requested

    def _tell_outcomes(self) -> None:
        while self._outcomes:
            names, outcome = self._outcomes.pop(0)
            for trigger in self._triggers:
                if id(trigger) in self._pending and name_of(trigger) in names:
                    self._pending.discard(id(trigger))
                    try:
                        trigger.done(outcome)
                    except BaseException as error:
                        self._failed(trigger, error, "done")

    def stuck_since(self) -> tuple[Trigger, float] | None:
        """The trigger that is being asked, and since when (monotonic seconds); None when none is."""
        return self._asking

    def _failed(self, trigger: Trigger, error: BaseException, what: str) -> None:
        count = self._failures[id(trigger)] = self._failures.get(id(trigger), 0) + 1
        name = name_of(trigger)
        if count == 1:
            self._recorder.warn(f"the trigger {name} failed in {what}(): {error!r}; it is asked again")
        elif count == MOST_FAILURES:
            self._recorder.warn(f"the trigger {name} failed {count} times: it is not asked any more")

    def _safely(self, work: Callable[[], None]) -> None:
        """A fault of the guard itself does not end the thread."""
        try:
            work()
        except Exception as error:
            self._recorder.warn(f"the guard cannot do its side work: {error!r}", key="also")


class Watches:
    """The threads together: on rank 0 with a run directory one for files, which may hang with their server, and one for
    the triggers of others, which may hang as they like.

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
        """`first` gets the first look at the files; `at_files` and `at_node` are side work for the two threads."""
        own = [trigger for trigger in own_triggers if asked_here(trigger, place)]
        asked = [trigger for trigger in triggers if asked_here(trigger, place)]
        self.has_files = bool(place.is_first and place.run_dir)
        self._recorder = recorder
        self._first = first
        self._on_request = on_request
        self._file_s = settings.poll_s
        self._told_of_saves = [
            saved for saved in (getattr(trigger, "saved", None) for trigger in (*asked, *own)) if saved
        ]
        shared = [trigger for trigger in asked if self.has_files and getattr(trigger, "shared", False)]
        local = [trigger for trigger in asked if trigger not in shared]
        watch = partial(Watch, on_request=on_request, recorder=recorder)
        self._node = watch("watch", local, every_s=min(settings.poll_s, LOOK_S), also=self._look_after)
        self._at_node = at_node
        self._all = [self._node]
        if own:
            self._all.append(watch("triggers", own, every_s=settings.poll_s))
        if self.has_files:
            self._all.append(watch("files", shared, every_s=settings.poll_s, first=first, also=at_files))

    def start(self) -> None:
        """Begin to look."""
        if not self.has_files:
            self._first([])
        for watch in reversed(self._all):
            watch.start()

    def look_at_files(self, triggers: Sequence[Trigger]) -> None:
        """On a rank other than 0: look at shared files from now on, because nobody else does."""
        watch = Watch("files", triggers, every_s=self._file_s, on_request=self._on_request, recorder=self._recorder)
        self._all.append(watch)
        watch.start()

    def obeyed(self, names: Iterable[str], outcome: str) -> None:
        """A decision was obeyed that these triggers asked for."""
        for watch in self._all:
            watch.obeyed(names, outcome)

    def save_began(self) -> None:
        """What is on this node is looked at now: the memory rises with the save."""
        self._node.wake()

    def saved(self, step: int) -> None:
        """Triggers that would rather stop right after a save look now: any later and steps are done for nothing."""
        for saved in self._told_of_saves:
            try:
                saved(step)
            except Exception as error:
                self._recorder.warn(f"a trigger failed in saved(): {error!r}", key="saved")
        if self._told_of_saves:
            for watch in self._all:
                watch.wake()

    def wake(self) -> None:
        """Look, and do the side work, now."""
        for watch in self._all:
            watch.wake()

    def stop(self, wait_s: float) -> None:
        """Hear the last outcomes, then end; a thread that hangs is left behind after `wait_s`."""
        for watch in self._all:
            watch.stop(wait_s)

    def _look_after(self) -> None:
        """Side work of the node's thread, which has no trigger that may hang: name those in other threads that do."""
        now = time.monotonic()
        for watch in self._all:
            stuck = watch.stuck_since()
            if stuck is not None and now - stuck[1] > STUCK_S:
                name = name_of(stuck[0])
                self._recorder.warn(
                    f"the trigger {name} has not answered for {STUCK_S:g} s (a file system that hangs?); it and those "
                    "asked after it are waited for",
                    key=f"stuck {name}",
                )
        self._at_node()
