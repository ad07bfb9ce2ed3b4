"""``python -m asyncgen_apps.cli`` is ``asyncgen`` without an installed script."""

from asyncgen_apps.cli import main

if __name__ == "__main__":
    main()
