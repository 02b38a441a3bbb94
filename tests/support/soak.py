"""How long randomised tests run: MOONPOOL_SOAK=1 asks for ten times as much."""

from __future__ import annotations

import os

SOAK = 10 if os.environ.get("MOONPOOL_SOAK") == "1" else 1
