"""The gate tried on faults that it must catch: real gates on this machine, with known faults injected into their ranks.

`faults` says which and what the gate must make of each; `trials` runs them against a baseline of their own;
`inject/sitecustomize.py` is what puts a fault into a rank.
"""
