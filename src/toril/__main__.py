"""``python -m toril`` is ``toril``."""

from toril.cli.main import main

if __name__ == "__main__":
    main()
