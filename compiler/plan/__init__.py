"""The plan: which rule holds in which layer of a model, before anything is compiled."""
