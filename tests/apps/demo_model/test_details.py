"""Details fit every object, invented ones too."""

from __future__ import annotations

from asyncgen_apps.demo_model.details import ANY_NOTES, KIND_NOTES, KINDS, notes


def test_every_kind_has_notes() -> None:
    assert set(KINDS) == set(KIND_NOTES)
    assert notes("flute") == KIND_NOTES["music"]


def test_invented_objects_have_notes() -> None:
    assert notes("plooth") == ANY_NOTES
