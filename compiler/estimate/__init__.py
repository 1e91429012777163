"""What a step will take, found from the rewritten graphs before anything runs."""
