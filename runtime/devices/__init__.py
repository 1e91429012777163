"""What an accelerator must be able to do, and the accelerators of torch."""
