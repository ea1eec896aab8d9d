"""What a search asks: a model of mctx's, cut where it can be remembered."""
