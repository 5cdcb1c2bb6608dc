"""Address management: plugins that give addresses and never see an interface."""
