"""Files that another trainer loads into its own process: alone here, since it puts their folder on its path."""
