"""Which node is bad: the check before a start, and the evidence per node."""
