"""Runs inside the user's own training command: Python imports ``sitecustomize`` there at its
start.
"""
