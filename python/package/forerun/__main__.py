"""The ``forerun`` command, as ``python -m forerun``."""

from ._command import main

if __name__ == "__main__":
    main()
