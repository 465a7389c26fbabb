"""Memory limits and their use, and forecasts of when they are reached: the node, every cgroup of the job, the GPU."""
