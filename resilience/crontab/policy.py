"""Whose files may run with the owner's rights. Pure: judges facts of stat(2)."""
