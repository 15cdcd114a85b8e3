"""The number of the first key columns that are encoded on their own, before the row of the others. Without Arrow."""

from __future__ import annotations

OF_STATE = 1
"""The key group."""

OF_DUE_KEYS = 2
"""The key group, and the time."""
