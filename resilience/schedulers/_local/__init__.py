"""Parts of the embedded scheduler: its spool, its rules, its daemon. `../local.py` is the entry."""
