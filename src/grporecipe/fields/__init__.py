"""Read and write recipes by the table of fields that each framework has."""
