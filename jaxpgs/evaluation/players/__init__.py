"""Players: their interface, and players of this library, of OpenSpiel and of GTP programs."""
