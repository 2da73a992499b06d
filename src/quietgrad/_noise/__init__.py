"""The noise of a release: how it is drawn, and from which bits."""
