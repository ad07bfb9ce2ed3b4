"""Old names work for one release, and warn."""

from __future__ import annotations

import pytest

from asyncgen.runtime.deprecation import renamed


class Renamed:
    is_new = 3
    old = renamed("old", "is_new")


def test_an_old_name_reads_the_new_one_and_warns() -> None:
    with pytest.warns(DeprecationWarning, match="`old` is deprecated.*read `is_new`"):
        assert Renamed().old == 3
