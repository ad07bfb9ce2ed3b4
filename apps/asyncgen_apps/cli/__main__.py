"""Run ``asyncgen`` as ``python -m asyncgen_apps.cli``, without an installed script."""

from asyncgen_apps.cli import main

if __name__ == "__main__":
    main()
