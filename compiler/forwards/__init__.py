"""The ``forward`` that takes the place of a model's own: of a whole model, or of each layer."""
