"""Read shell scripts that launch trainings as bash does. They are never run."""
