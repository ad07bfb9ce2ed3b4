"""Generation: configuration, logits processors, stopping criteria and output objects.

Nothing is imported here, so that ``asyncgen.generation.config`` stays importable without torch.
The names that the reference has in its package of this name are written in ``__init__.pyi``. They
are those of `asyncgen`, imported when they are first asked for.
"""

__path__.append(f"{__path__[0]}/../reference/paths/generation")


def __getattr__(name: str) -> object:
    """Import a name of the stub when it is first asked for."""
    import asyncgen

    value = asyncgen._import(name, __name__)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Name what can be asked for."""
    import asyncgen

    return sorted({*globals(), *asyncgen._modules(__name__)})
