"""`python -m resilience` is `resil`."""

from resilience.cli.entry import main

if __name__ == "__main__":
    main()
