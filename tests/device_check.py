"""Find everything out about a device in one command: is it right, how fast, and why not faster.

``python tests/device_check.py [--minutes 8] [--out folder]`` needs a checkout and a plain image of
PyTorch (torch 2.11 or later, transformers, tokenizers, safetensors, anyio), no installation, no
network and no compiler. It keeps to its time by leaving out what matters least, and says so. After
every item it writes ``report.json`` and ``report.md``, so that a kill loses nothing. Its exit
status is 1 where something that should hold does not.

On a CPU (``--device cpu --shape 5m``) a stand-in takes the place of the device: a test of the
command itself, and of everything of the engine that only an accelerator uses.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The folder of this file, which Python puts first, has packages of names that others have.
others = [path for path in sys.path if Path(path) != ROOT / "tests"]
sys.path[:] = [str(ROOT), str(ROOT / "apps"), *others]

if __name__ == "__main__":
    from tests.device.command import main

    sys.exit(main())
