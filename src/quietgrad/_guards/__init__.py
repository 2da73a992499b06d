"""What is refused beside a private step, because it would undo its guarantee."""
