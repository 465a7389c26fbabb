"""Insides of `resil watch ckpt`."""
