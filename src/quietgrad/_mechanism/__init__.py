"""What a step releases, under which clip, with how much noise, and what follows for free."""
