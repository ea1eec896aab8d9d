"""Learning games of one player."""
