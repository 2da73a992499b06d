"""Many runs at equal (ε, δ), and what can be said about them."""
