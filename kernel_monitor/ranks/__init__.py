"""The ranks of a training: other processes whose steps are shown in this kernel's dashboard.

Optional: see `kernel_monitor.plugins`. In: nothing from the user; `monitor.start` makes a folder of keys
(`session_files`) whose path children inherit as KERNEL_MONITOR_JOIN. A rank's `rank_client` sends its steps to the
kernel's `rank_server`, which keeps `jobs`. Out: the ranks and their newest values, which `rank_tracker` makes columns
of the store. First: `rank_client.py`. Needs pyzmq; imports no torch.

Internal: no part of the public interface.
"""
