"""The words of the house: frozen values that every floor may name. No I/O, no clock, no environment."""
