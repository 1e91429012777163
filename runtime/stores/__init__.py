"""Where swapped values live: a file, or pinned host memory; both divided by the same allocator of extents."""
