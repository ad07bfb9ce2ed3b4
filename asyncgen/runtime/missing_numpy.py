"""Hide the warning of torch that there is no numpy: nothing here needs one.

Imported before torch, which warns when it is imported.
"""

from __future__ import annotations

import warnings

warnings.filterwarnings("ignore", message="Failed to initialize NumPy", category=UserWarning)
