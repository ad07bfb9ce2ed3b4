"""Check the values of a foreign ``config.json`` one by one; every error names the key.

This module knows neither families nor what the values are used for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from asyncgen.errors import ModelLoadError, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence


T = TypeVar("T")

Kinds: TypeAlias = tuple[str, ...]
"""``"full_attention"``, ``"sliding_attention"`` or ``"chunked_attention"`` for each layer."""

HIDDEN_ACTS = (
    "silu",
    "swish",
    "gelu",
    "gelu_new",
    "gelu_fast",
    "gelu_pytorch_tanh",
    "relu",
    "relu2",
)
"""Supported activations."""

_DTYPES = ("float32", "float16", "bfloat16", "float64")

_HUGE = 1e30
"""Largest number that is accepted; float32 computes with it."""

_TINY = 1e-30

MOST = 2**31 - 1
"""Largest whole number that makes sense anywhere in a file."""

MOST_LAYERS = 512
"""Most layers of a stack, four times those of the deepest: each is built, however small."""


MOST_HEADS = 65_536
"""Most heads of a layer, likewise."""


class ConfigValues:
    """Reads one foreign dictionary; every error names the key.

    Attributes:
        model_type: Model type of the file.
        file: The dictionary as it is.
        raw: Its keys that this type has, in our spelling.
        read: The keys that were asked for, in our spelling.
    """

    def __init__(
        self,
        raw: Mapping[str, object],
        *,
        defaults: Mapping[str, object],
        spellings: Mapping[str, str],
        unread: Collection[str] = (),
    ) -> None:
        """Take the file.

        Args:
            raw: The parsed file.
            defaults: Values of missing keys.
            spellings: Names that this type has for keys of the others; either is read. A key inside
                an object is named with a dot.
            unread: Keys of the others that this type does not have.
        """
        self.model_type = str(raw.get("model_type"))
        self.file = raw
        self.raw = {key: value for key, value in raw.items() if key not in unread}
        self._present: set[str] = set()
        for ours, theirs in spellings.items():
            place, key = _placed(raw, theirs)
            if key in place:
                self._present.add(theirs)
                if place[key] is not None or ours not in raw:
                    self.raw[ours] = place[key]
        self.read: set[str] = set()
        self._defaults = defaults
        self._spellings = spellings
        self._made: dict[str, Any] = {}

    def value(self, key: str) -> object:
        """Return the value of a key, else the family's default."""
        self.read.add(key)
        found = self.raw.get(key)
        return self._defaults.get(key) if found is None else found

    def stated(self, key: str) -> object:
        """Return the value of a key, null included; the family's default only if it is missing."""
        self.read.add(key)
        return self.raw[key] if key in self.raw else self._defaults.get(key)

    def once(self, key: str, made: Callable[[object], T]) -> T:
        """Return what is made of a value; it is made once, though all layers may ask for it."""
        if key not in self._made:
            self._made[key] = made(self.value(key))
        found: T = self._made[key]
        return found

    def listed(
        self, key: str, count: int, is_well: Callable[[object], bool], each: str
    ) -> Sequence[Any] | None:
        """Read a list with an entry for each layer; ``None``: there is none.

        Args:
            key: Key of the list.
            count: Number of layers.
            is_well: Tells whether an entry is allowed.
            each: Description of the entries, for the error.
        """

        def checked(stated: object) -> Sequence[Any] | None:
            if stated is None:
                return None
            is_list = isinstance(stated, (list, tuple)) and len(stated) == count
            if not is_list or not all(map(is_well, stated)):  # type: ignore[call-overload]
                raise self.bad(key, stated, f"must list {each} for {count} layers")
            return stated  # type: ignore[return-value]

        return self.once(key, checked)

    def bad(self, key: str, value: object, allowed: str) -> ModelLoadError:
        """Make an error about a key, in the spelling of the file."""
        return bad(self.spelling(key), value, allowed)

    def spelling(self, key: str) -> str:
        """Return the file's name of a key."""
        theirs = self._spellings.get(key, key)
        return theirs if theirs in self._present else key

    def require(self, key: str, *allowed: object) -> None:
        """Refuse every value of a key that is none of these; null and missing are accepted."""
        value = self.value(key)
        if value is not None and not any(
            type(value) is type(each) and value == each for each in allowed
        ):
            listed = " or ".join(repr(each) for each in allowed)
            raise self.bad(key, value, f"supported is {listed}")

    def number(self, key: str, default: float = 0.0) -> float:
        """Read a finite number."""
        name = self.spelling(key)
        return number({name: self.value(key)}, name, default)

    def positive(self, key: str, default: float = 0.0) -> float:
        """Read a finite number above 0."""
        value = self.number(key, default)
        if value < _TINY:
            raise self.bad(key, value, "must be above 0")
        return value

    def positive_or_none(self, key: str) -> float | None:
        """Read a finite number above 0; null means that there is none."""
        return None if self.stated(key) is None else self.positive(key)

    def epsilon(self) -> float:
        """Read the number that is added before the root of a norm."""
        value = self.number("rms_norm_eps", 1e-6)
        if value < 0:
            raise self.bad("rms_norm_eps", value, "must not be below 0")
        return value

    def count(self, key: str, *, default: int | None = None, most: int = MOST) -> int:
        """Read an integer of at least 1."""
        value = self.value(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise self.bad(key, value, f"must be a whole number of at least 1, {most} at most")
        return value

    def count_or_none(self, key: str) -> int | None:
        """Read an integer of at least 1; null means that there is none."""
        return None if self.stated(key) is None else self.count(key)

    def whole(self, key: str, *, most: int = MOST_LAYERS) -> int:
        """Read an integer of at least 0; null means 0."""
        return 0 if self.value(key) in (None, 0) else self.count(key, most=most)

    def kv_heads(self, heads: int) -> int:
        """Read the number of key and value heads."""
        # Null means one per query head; only a missing key gets the default.
        if self.stated("num_key_value_heads") is None:
            return heads
        return self.count("num_key_value_heads")

    def flag(self, key: str) -> bool:
        """Read true or false; null is false, and only a missing key gets the default."""
        value = self.stated(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.bad(key, value, "must be true or false")
        return value

    def choice(self, key: str, allowed: Sequence[str], default: str) -> str:
        """Read one of several names."""
        self.read.add(key)
        value = self.raw.get(key, self._defaults.get(key, default))
        if not isinstance(value, str) or value not in allowed:
            raise self.bad(key, value, f"supported are {', '.join(allowed)}")
        return value

    def activation(self, default: str = "silu") -> str:
        """Read the activation of the feed-forward."""
        return self.choice("hidden_act", HIDDEN_ACTS, default)

    def token(self, key: str) -> int | None:
        """Read a token id, or none."""
        # A key that is null means that there is no such token, unlike a key that is missing.
        value = self.stated(key)
        if value is None:
            return None
        if not _is_token(value):
            raise self.bad(key, value, "must be a token id or null")
        assert isinstance(value, int)
        return value

    def tokens(self, key: str) -> int | list[int] | None:
        """Read a token id or several, or none."""
        value = self.stated(key)
        if isinstance(value, (list, tuple)):
            if not value or not all(map(_is_token, value)):
                raise self.bad(key, value, "must be a token id, a list of them, or null")
            return list(value)
        return self.token(key)

    def head_dim(self, hidden: int, heads: int, *, is_rotary: bool) -> int:
        """Read the size of a head."""
        if self.value("head_dim") is None and hidden % heads:
            raise self.bad(
                "hidden_size", hidden, f"must be a multiple of num_attention_heads ({heads})"
            )
        size = self.count("head_dim", default=hidden // heads)
        if size % 2 and is_rotary:
            raise self.bad("head_dim", size, "rotary embeddings rotate pairs, so it must be even")
        return size

    def layer_types(
        self, window: int | None, expected: tuple[str, ...], *, sliding: str, fixed: bool
    ) -> Kinds:
        """Read the kind of each layer.

        Args:
            window: Keys that a sliding layer sees; ``None``: there can be none.
            expected: Kinds of the layers if the file does not list them.
            sliding: Name of a layer that slides in the files.
            fixed: True if no other kinds are possible.
        """
        stated = self.value("layer_types")
        if stated is None:
            return expected
        allowed = ("full_attention", sliding)
        if (
            not isinstance(stated, (list, tuple))
            or len(stated) != len(expected)
            or any(kind not in allowed for kind in stated)
        ):
            count = len(expected)
            raise self.bad(
                "layer_types", stated, f"must list one of {', '.join(allowed)} for {count} layers"
            )
        if fixed and tuple(stated) != expected:
            raise self.bad("layer_types", stated, f"{self.model_type} layers are all {expected[0]}")
        if window is None and sliding in stated:
            raise self.bad(
                "layer_types", list(stated), "has sliding layers, but no sliding_window is in use"
            )
        return tuple(stated)

    def dtype(self) -> str | None:
        """Read the name of the dtype of the weights, if the file gives it."""
        key = "dtype" if self.raw.get("dtype") is not None else "torch_dtype"
        value = self.raw.get(key)
        if value is None or value == "auto":
            return None
        name = value.removeprefix("torch.") if isinstance(value, str) else None
        if name not in _DTYPES:
            raise self.bad(key, value, f"supported are {', '.join(_DTYPES)}")
        return name


def _placed(raw: Mapping[str, object], name: str) -> tuple[Mapping[str, object], str]:
    """Find the object that a dotted key stands in, and its name there."""
    *outer, inner = name.split(".")
    place: Mapping[str, object] = raw
    for key in outer:
        found = place.get(key)
        found = {} if found is None else found
        if not isinstance(found, Mapping):
            raise bad(key, found, "must be an object")
        place = found
    return place, inner


def present(source: Mapping[str, object]) -> dict[str, object]:
    """Drop the values that are null."""
    return {key: value for key, value in source.items() if value is not None}


def number(source: Mapping[str, object], key: str, default: float) -> float:
    """Read a finite number of a dictionary."""
    value = source.get(key)
    if value is None:
        return default
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _HUGE:
        return float(value)
    raise bad(key, value, "must be a finite number")


def _is_token(value: object) -> bool:
    """Return whether this is a whole number that a tensor of ids can hold; some files have -1."""
    return type(value) is int and abs(value) <= MOST


def bad(key: str, value: object, allowed: str) -> ModelLoadError:
    """Make an error about a key of ``config.json``."""
    return ModelLoadError(f"config.json: `{key}` is {shorten(value)}: {allowed}")
