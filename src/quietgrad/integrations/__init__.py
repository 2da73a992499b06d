"""Private training inside the trainers that people have; each needs its own extra."""
