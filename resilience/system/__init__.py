"""The interface to the operating system: clock, processes, files, HTTP, secrets."""
