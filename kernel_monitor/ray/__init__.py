"""The engine `ray`: batches computed by other machines. An optional part, which the rest reaches through `plugin.py`.

In goes a slot of the plan, out comes what the user's own data set and collate function make of it, on whichever node.
First: `engine.py`, the engine as the loader has it, and `node_worker.py`, what runs on the nodes. `driver.py` is a
process beside the kernel that joins the cluster, so that Ray's threads, output and exits stay out of the kernel: Ray
ends a process that has lost its cluster. In it, `pool.py` places the workers, hands slots to them, and again to others
where no answer comes. `driver_process.py` is the kernel's side of the pipe to it, `nodes.py` what the kernel knows of
the nodes, and `cluster.py` decides which cluster is joined.

Internal: no part of the public interface.
"""
