"""Figures about a method that only research may look at."""
