"""The rules of GRPO settings: one file a family, one declaration a rule.

Codes are permanent. ``registry`` says what a rule is, ``helpers`` what many of them share; `grposweep.check` judges.
"""
