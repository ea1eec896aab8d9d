"""How the networks that come with the library were trained."""
