"""The rules on GRPO settings that hold for several frameworks: one file a topic, one declaration a rule.

A topic is a family of codes (``GB``) or a part of one. Rules of one framework are in its folder. Codes are permanent.
``registry`` says what a rule is, ``helpers`` what many of them share; `grposweep.check` judges.
"""
