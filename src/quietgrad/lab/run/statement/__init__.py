"""What a run claims: the privacy statement, its model card, and whether the claim stands."""
