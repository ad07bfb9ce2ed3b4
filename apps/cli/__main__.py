"""``python -m apps.cli`` is ``asyncgen`` without an installed script."""

from apps.cli import main

if __name__ == "__main__":
    main()
