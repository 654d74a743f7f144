"""Benchmarks: our kernels beside local ones and beside those of another ssh provisioner, all in one run.

    python -m tests.benchmarks [--quick] [--only NAME] [--json FILE] [--markdown] [--no-peer]

Nothing here asserts a time. What is asserted is that the work was done: that every line arrived, that the interrupted
cell says so. See `measures.py` for what is measured and how.
"""
