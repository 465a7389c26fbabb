"""Thin adapters of the guard to trainers. Nobody imports them."""
