"""Coordinates that take part, chosen at random or by what was released before."""
