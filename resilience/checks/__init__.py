"""The watchdogs, one file each: `probe` looks and is the only I/O, `judge` is pure. Names with `_` are parts."""
