"""`python -m statestore`: the same command as `statekeeper`."""

from statestore.cli import main

if __name__ == "__main__":
    main(prog_name="statekeeper")
