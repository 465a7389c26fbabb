"""Parts of the embedded scheduler: spool, rules, daemon. The entry point is `../local.py`."""
