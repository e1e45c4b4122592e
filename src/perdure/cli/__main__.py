"""`python -m perdure.cli` is `perdure`."""

from perdure.cli import main

if __name__ == "__main__":
    main()
