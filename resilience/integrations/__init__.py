"""Thin adapters of the guard for trainers. No module of resil imports them."""
