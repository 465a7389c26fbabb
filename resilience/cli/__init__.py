"""The Typer surface: the only place that prints, exits and wires things."""
