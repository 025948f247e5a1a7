"""Arithmetic on tensors: counting, merging, energies; knows torch, numpy and numba alone."""
