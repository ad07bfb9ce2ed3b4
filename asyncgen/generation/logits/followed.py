"""Follow what a user changes in a built-in processor while its request runs.

`model.generate` calls the object that the user passed, so a change counts from the next call on.
Where another object runs in its place, or the parameters of many rows are laid out once, changes
have to be looked for. Attributes whose names begin with an underscore are not looked at. Code of
the user behind an attribute, such as an operator of its class, runs guarded, never beside others.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from torch import Tensor
from torch.nn import Parameter

from asyncgen.runtime.plain_values import holds_plain
from asyncgen.runtime.user_code import run_user_code

_Attributes: TypeAlias = dict[str, tuple[Any, int]]
"""Values by name, each with the number of writes to it in place."""


class FollowedProcessor:
    """A built-in processor that a user passed, and the object that runs in its place.

    Attributes:
        runs_alone: Whether it cannot run beside others: the user has changed it since the request
            began, or code of the user is behind an attribute.
    """

    __slots__ = ("_own", "_passed", "_seen", "runs_alone")

    def __init__(self, passed: Any, own: Any) -> None:
        """Begin with the attributes as they are.

        Args:
            passed: What the user may change.
            own: What runs: the same object, or a copy that has a memory of its own.
        """
        self._passed = passed
        self._own = own
        self._seen = _attributes(passed)
        self.runs_alone = not holds_plain(passed)

    def follow(self) -> bool:
        """Bring what runs up to what was passed; return whether it has to run alone from now on.

        What a copy has set itself, such as its memory, stays.
        """
        seen, now = self._seen, _attributes(self._passed)
        is_same = now.keys() == seen.keys() and all(
            value is seen[name][0] and writes == seen[name][1]
            for name, (value, writes) in now.items()
        )
        if is_same and (self.runs_alone or holds_plain(self._passed)):
            return False
        own = vars(self._own)
        for name in seen.keys() & own.keys():
            if own[name] is seen[name][0]:
                if name in now:
                    run_user_code(setattr, self._own, name, now[name][0])
                elif self._own is not self._passed:
                    run_user_code(delattr, self._own, name)
        self._seen = now
        is_first, self.runs_alone = not self.runs_alone, True
        return is_first


def _attributes(processor: Any) -> _Attributes:
    return {
        name: (value, _writes(value))
        for name, value in [*vars(processor).items()]  # a copy, as other threads may add some
        if not name.startswith("_")
    }


def _writes(value: Any) -> int:
    is_plain = type(value) in (Tensor, Parameter)  # another class may run code of a user
    return value._version if is_plain and not value.is_inference() else 0
