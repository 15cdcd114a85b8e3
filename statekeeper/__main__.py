"""`python -m statekeeper`: the same command as `statekeeper`."""

from statekeeper.statestore.cli import main

if __name__ == "__main__":
    main(prog_name="statekeeper")
