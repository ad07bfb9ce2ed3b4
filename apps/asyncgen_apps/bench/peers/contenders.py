"""List the contenders of ``bench peers``: this library and its peers."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from asyncgen_apps.bench.peers.programs.protocol import Request


@dataclass(frozen=True, slots=True)
class Contender:
    """Library, and one way to use it.

    Attributes:
        title: Name in tables.
        program: ``file:Class`` in the folder ``programs``.
        is_shared: True if its library may also be installed beside us.
        many: True if it answers several requests at a time.
        arrivals: True if requests may come while others run, with answers of any length.
        color: Color in charts.
        bits: Format of its packed weights, ``int8`` or ``int4``; ``None``: as they are stored.
        weights: Name of that format for its program.
    """

    title: str
    program: str
    is_shared: bool = False
    many: bool = True
    arrivals: bool = True
    color: str = "#9aa5b1"
    bits: str | None = None
    weights: str | None = None

    @property
    def home(self) -> str | None:
        """Name of its environment, that of its program; ``None`` is the one of the benchmark."""
        file = self.program.partition(":")[0]
        return None if file == "ours" else file

    @property
    def is_ours(self) -> bool:
        """True if it is this library, and no peer."""
        return self.home is None

    def takes(self, requests: Sequence[Request]) -> bool:
        """Tell whether it can answer these requests."""
        alike = len({(one["arrival"], one["new_tokens"]) for one in requests}) == 1
        return (self.many or len(requests) == 1) and (self.arrivals or alike)

    def python(self, environments: Path) -> str | None:
        """Return the interpreter that has its library, ``None`` if it is not installed."""
        if self.home is None:
            return sys.executable
        folder = environments / self.home
        if (folder / "installed").is_file():
            return str(folder / "bin" / "python")
        if self.is_shared and importlib.util.find_spec(self.home) is not None:
            return sys.executable
        return None


def _packed(title: str, program: str, bits: str, weights: str, color: str) -> Contender:
    """Make a contender with packed weights."""
    return Contender(f"{title} {weights}", program, color=color, bits=bits, weights=weights)


OURS = "asyncgen"
CONTENDERS = {
    OURS: Contender("asyncgen", "ours:Streams", color="#1f6feb"),
    "asyncgen-torch": Contender("asyncgen, torch's kernels", "ours:TorchKernels", color="#79b8ff"),
    "transformers": Contender(
        "transformers", "transformers:Generate", True, arrivals=False, color="#d4a72c"
    ),
    "transformers-thread": Contender(
        "transformers, thread",
        "transformers:Threaded",
        True,
        many=False,
        arrivals=False,
        color="#e8c468",
    ),
    "transformers-continuous": Contender(
        "transformers, continuous", "transformers:Continuous", True, color="#9a6700"
    ),
    "llamacpp": Contender("llama.cpp", "llamacpp:DecodeLoop", color="#1a7f37"),
    "openvino": Contender("OpenVINO", "openvino:Pipeline", color="#8250df"),
    "vllm": Contender("vLLM", "vllm:Engine", color="#cf222e"),
    "ctranslate2": Contender("CTranslate2", "ctranslate2:Batch", arrivals=False, color="#6e7781"),
    "asyncgen-int8": _packed("asyncgen", "ours:Streams", "int8", "int8", "#388bfd"),
    "llamacpp-q8_0": _packed("llama.cpp", "llamacpp:DecodeLoop", "int8", "Q8_0", "#116329"),
    "openvino-int8": _packed("OpenVINO", "openvino:Pipeline", "int8", "int8", "#6639ba"),
    "asyncgen-int4": _packed("asyncgen", "ours:Streams", "int4", "int4", "#54aeff"),
    "llamacpp-q4_0": _packed("llama.cpp", "llamacpp:DecodeLoop", "int4", "Q4_0", "#2da44e"),
    "llamacpp-q4_k_m": _packed("llama.cpp", "llamacpp:DecodeLoop", "int4", "Q4_K_M", "#4ac26b"),
    "openvino-int4": _packed("OpenVINO", "openvino:Pipeline", "int4", "int4", "#a475f9"),
}
DEFAULT = tuple(
    name
    for name, one in CONTENDERS.items()
    if one.bits is None and name not in ("asyncgen-torch", "ctranslate2")
)
"""Contenders if none are chosen."""
PACKINGS = ("int8", "int4")
"""Formats of packed weights."""


def packed_contenders(bits: Sequence[str], peers: Sequence[str] = ()) -> list[str]:
    """Return the contenders for packed weights; ours in 16 bits is the first.

    Args:
        bits: Formats, of :data:`PACKINGS`.
        peers: Keys of :data:`CONTENDERS`, or names of their environments; none: all.
    """
    return [OURS] + [
        name
        for name, one in CONTENDERS.items()
        if one.bits in bits and (one.is_ours or not peers or {name, one.home} & set(peers))
    ]


def environments_folder() -> Path:
    """Return the folder in which ``.ci/peers`` makes the environments."""
    chosen = os.environ.get("ASYNCGEN_PEERS")
    return Path(chosen) if chosen else Path.home() / ".cache" / "asyncgen-peers"


def installed(names: Iterable[str], environments: Path) -> tuple[dict[str, str], list[str]]:
    """Find the installed contenders.

    Returns:
        The interpreter of each contender that is installed, and the names of the others.
    """
    found = {name: CONTENDERS[name].python(environments) for name in names}
    there = {name: python for name, python in found.items() if python is not None}
    return there, [name for name in found if name not in there]
