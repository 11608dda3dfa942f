"""Python files and notebooks that train, read by their syntax trees and never imported."""
