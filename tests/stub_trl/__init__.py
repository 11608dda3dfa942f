"""A stub of TRL and transformers for tests of sweeps over the user's own command: their classes and
events, without torch.
"""
