"""What runs inside a training step. Recomputation needs nothing here; moving values to another tier will."""
