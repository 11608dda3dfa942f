"""Shell scripts that launch trainings, read as bash reads them and never run."""
