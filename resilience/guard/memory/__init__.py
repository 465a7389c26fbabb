"""How much memory there is and how long it lasts: of the node, of every cgroup of the job, of the GPU."""
