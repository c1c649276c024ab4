"""The command line as ``python -m autojacobin``."""

from autojacobin.cli import main

if __name__ == "__main__":
    main()
