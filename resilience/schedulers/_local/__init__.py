"""What belongs to the embedded scheduler: its spool, its rules, its daemon. `../local.py` is the way in."""
