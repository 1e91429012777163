"""How the benchmarks measure one training step: as the demonstration does."""

from memopt.demo.measure import peak_bytes, set_threads, step_seconds

__all__ = ["peak_bytes", "set_threads", "step_seconds"]
