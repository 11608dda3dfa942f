"""Files that ms-swift loads into its own process. They are alone here because it adds their folder
to its path.
"""
