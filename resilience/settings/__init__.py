"""resil.toml, the environment and the command line to the owners' dataclasses."""
