"""Ways to tell people: one file per channel. `compose` is pure; `send` talks."""
