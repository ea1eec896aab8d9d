"""Who plays: the record of a player, and ours, OpenSpiel's and GTP's."""
