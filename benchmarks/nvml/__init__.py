"""A stand-in for NVIDIA's library: put this directory first on PYTHONPATH and `pynvml` is the one in it."""
