"""From a configuration and a model to a lowered graph."""
