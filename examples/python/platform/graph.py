"""A deep agent for `langgraph dev` and LangGraph Platform: one sandbox per thread.

The platform keeps the threads, and with them the id of each one's sandbox.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from sandgate.deepagents import SandgateManager


def chosen_model() -> Any:
    """Return the model that MODEL names, or one that needs no key."""
    if name := os.environ.get("MODEL"):
        return name
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from scripted import CommandModel  # noqa: PLC0415 - only where no model is named

    return CommandModel()


manager = SandgateManager(ttl_idle_seconds=1800, default_labels={"app": "platform"}, recreate=True)
graph = manager.create_agent(chosen_model())
