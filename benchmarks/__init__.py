"""What the promises about speed rest on: `python -m benchmarks`. One file per claim."""
