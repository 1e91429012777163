"""Decide, then act: passes over the joint forward-backward graph, one a file."""
