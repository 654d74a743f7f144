"""One kernel as seen from this side: its link, its relay, its life."""
