"""`resil drill`: faults on purpose, on the user's own training and cluster."""
