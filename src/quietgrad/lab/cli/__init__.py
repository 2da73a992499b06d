"""The commands of `quietgrad`."""
