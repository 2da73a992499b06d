"""One private run: its config, its loop, its folder."""
