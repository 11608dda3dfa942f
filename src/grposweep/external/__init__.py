"""External trainers: the contract of a program that trains by itself, and a script of the user's own."""
