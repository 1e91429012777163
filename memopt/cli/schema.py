"""``memopt schema``."""

from __future__ import annotations

import json

from ..compiler.config.load import MemoptConfig
from .app import app


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file, for editors."""
    print(json.dumps(MemoptConfig.json_schema(), indent=2))
