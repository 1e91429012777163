"""What a configuration resolved to, written down, so that a later change of the code can be held against it."""
