"""The cases that feed every law: one line adds a layer or a method."""
