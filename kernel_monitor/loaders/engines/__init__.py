"""The engines, which compute the batches of a plan, and which of them can run here.

In: a function that gives the next slot of the plan. Out: a `Delivery` for each slot. `engine.py` is the contract and
`backends.py` lists the engines.

Internal: no part of the public interface.
"""
