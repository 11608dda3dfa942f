"""``python -m grposweep``: the grposweep command."""

from grposweep.cli import main

if __name__ == "__main__":
    main()
