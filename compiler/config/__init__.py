"""The configuration: YAML text in, every problem listed or a frozen ``MemoptConfig`` out."""
