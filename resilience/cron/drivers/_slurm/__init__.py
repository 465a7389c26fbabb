"""The chain of small jobs that makes the ticks where jobs are all there is."""
