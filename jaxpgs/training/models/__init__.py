"""Learning models to plan with."""
