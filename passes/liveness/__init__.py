"""What is in memory while a graph runs.

storages   which values share memory, and how many bytes each piece has
kernels    what runs at once: every operator by itself
fused      what runs at once where a backend makes kernels of elementwise operators
"""
