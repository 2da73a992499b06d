"""The five papers, entry by entry: what each claims, how it is checked here, and what came out."""
