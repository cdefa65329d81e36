"""How fast shoal is, as ratios against the peers that are installed here."""
