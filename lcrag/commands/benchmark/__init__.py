"""`lcrag benchmark`: speed of sampling and learning on the available devices, compared with a lower bound.

`machine` measures the rates of the devices, `workloads` runs the phases of a training step, `benchmarking` compares.
"""
