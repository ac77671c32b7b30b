"""The user's chain of transforms: translated to DALI, and run by torchvision with the plan's random numbers.

A transform goes in; a `Program` for DALI (`translate`) and an `Injected` copy that takes its random numbers from the
plan (`inject`) come out. First: `translate`, whose `OPS` lists the known transforms; `geometry` and `colour` have their
arithmetic.

Internal: no part of the public interface.
"""
