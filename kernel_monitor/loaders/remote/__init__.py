"""Batches computed by other machines, on Ray.

In goes a slot of the plan, out comes what the user's own data set and collate function make of it, on whichever node.
First: `node_worker.py`, what runs on the nodes. `driver.py` is a process beside the kernel that joins the cluster, so
that Ray's threads, output and exits stay out of the kernel: Ray ends a process that has lost its cluster. In it,
`pool.py` places the workers, and `dispatch.py` hands slots to them, and again to others where no answer comes;
`cluster_watch.py` notices that the whole cluster is gone. `driver_process.py` is the kernel's side of the pipe.
"""
