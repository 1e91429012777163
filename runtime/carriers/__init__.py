"""The ways from a device to a store and back: through pinned memory, to a file, or through a little pinned memory to a file."""
