"""One rank of a training whose ranks hold equal state: `python -m tests.guard.sdc.replica_rank FAULTS`.

FAULTS is JSON: by rank, the step, the tensor, the value to put into it, and `before` or `after` the check, once. Prints
what the watch found, the digest at the end, the steps that were done, and the decision, as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

from resilience.guard import TrainingGuard
from tests.guard.guards import QUIET
from tests.guard.sdc.arrays import Arrays, batch_of

STEPS = 80
PATIENCE_S = 60.0


def main() -> int:
    """Train."""
    faults: dict[str, Any] = json.loads(sys.argv[1])
    state = Arrays()
    random.seed(3)
    with TrainingGuard.from_env(
        **{**QUIET, "sdc": True, "sdc_replicas_every": 10, "join_timeout_s": PATIENCE_S}
    ) as guard:
        guard.should_stop_early()
        left = [faults[str(guard.place.rank)]] if str(guard.place.rank) in faults else []

        def put(when: str, step: int) -> None:
            if left and left[0][0] == step and left[0][3] == when:
                _, name, value, _ = left.pop()
                state.tensors[name][1] = float(value)

        state.inject = lambda step: put("before", step)
        state.after = lambda step: put("after", step)
        sdc = guard.sdc(state)
        decision = None
        for step in range(1, STEPS + 1):
            sdc.run(lambda batch: state.step(sdc, batch), batch_of(step))
            decision = guard.step()
            if decision.stop:
                break
            if sdc.found and sdc.found[-1].verdict == "replica":  # the decision comes a few steps later
                time.sleep(0.05)
        told = {
            "found": [[one.verdict, one.step, one.why] for one in sdc.found],
            "digest": state.digest(gradients=False),
            "done": state.done,
            "stop": bool(decision and decision.stop),
            "save": bool(decision and decision.save),
            "is_on": sdc.is_on,
        }
        print(json.dumps(told), flush=True)
        return guard.exit_code


if __name__ == "__main__":
    sys.exit(main())
