"""The user's chain of transforms: translated to DALI, and run by torchvision with the plan's random numbers.

In: a transform of torchvision's. Out: a `Program` for DALI (`translate.py`), and an `Injected` copy that takes its
numbers from the plan (`inject.py`). `catalogue.py` lists the known transforms, `ops/` has what each does.
"""
