"""The module paths of the reference: names of this library, and nothing else.

A file here is the module of its path below ``asyncgen``: ``paths/cache_utils.py`` is
``asyncgen.cache_utils``, ``paths/generation/utils.py`` is ``asyncgen.generation.utils``. So code
for the reference finds a name where it looks for it, and the rooms hold no second files.
"""
