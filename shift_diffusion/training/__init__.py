"""The training engine: a stage can be killed at any moment and ends in the same bytes.

`loop.train` sets the cadence, `step` makes one optimizer step, `objective` is the pure loss. Everything random
is a function of (seed, stage, draw, sample), see `rng`; everything that must survive a kill is in `checkpoint`.
"""
